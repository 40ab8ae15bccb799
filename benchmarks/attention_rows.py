"""Problems of ``cuda_attention``, by name.

- ``h128-4096-causal``: head size, length, mask; 16 heads, batch x length = 16384; ``bf16-`` in
  front for bfloat16.
- ``decode-b8-kv8-4096``: one query over a cache of K and V: batch, heads of K and V, keys; 32 heads
  of size 128.
"""

from __future__ import annotations

from tvmopt.kernels.attention.problem import AttentionProblem, MaskedBy

_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
_TOKENS, _HEADS = 16384, 16
_DECODE_HEADS, _DECODE_SIZE = 32, 128


def rows() -> dict[str, AttentionProblem]:
    """Return the problems by name."""
    found = {}
    for dtype, sizes, lengths in (
        ("float16", (64, 128), _LENGTHS),
        ("bfloat16", (64, 128), (2048, 16384)),
        ("float16", (256,), (4096,)),
    ):
        for size in sizes:
            for length in lengths:
                for causal in (MaskedBy.NOTHING, MaskedBy.FIRST_KEY):
                    name = "bf16-" if dtype == "bfloat16" else ""
                    name += f"h{size}-{length}-{'full' if causal is MaskedBy.NOTHING else 'causal'}"
                    found[name] = AttentionProblem(
                        _TOKENS // length, _HEADS, _HEADS, length, length, size, size, dtype,
                        size**-0.5, causal,
                    )  # fmt: skip
    return found | _decode_rows()


def _decode_rows() -> dict[str, AttentionProblem]:
    size = _DECODE_SIZE
    return {
        f"decode-b{batch}-kv{heads}-{keys}": AttentionProblem(
            batch, _DECODE_HEADS, heads, 1, keys, size, size, "float16", size**-0.5
        )
        for batch in (1, 8)
        for heads in (32, 8)
        for keys in (1024, 4096, 16384)
    }
