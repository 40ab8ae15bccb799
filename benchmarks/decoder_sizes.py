"""Sizes of the decoder step of ``benchmarks.cuda_decoder``."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder step: by default two layers of Llama 3 8B.

    Attributes:
        layers: Number of layers.
        hidden: Width of the hidden state.
        heads: Heads of the queries.
        kv_heads: Heads of keys and values.
        head_size: Width of a head.
        ffn: Width of the feed-forward network.
        past: Tokens in the KV cache.
    """

    layers: int = 2
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    ffn: int = 14336
    past: int = 1024

    def linears(self) -> dict[str, tuple[int, int]]:
        """Return (K, N) of the linear layers by name."""
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        one = {
            "q": (self.hidden, q), "k": (self.hidden, kv), "v": (self.hidden, kv),
            "o": (q, self.hidden), "gate": (self.hidden, self.ffn), "up": (self.hidden, self.ffn),
            "down": (self.ffn, self.hidden),
        }  # fmt: skip
        return {f"{layer}.{name}": kn for layer in range(self.layers) for name, kn in one.items()}
