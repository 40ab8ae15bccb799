"""ViT-B/16 and BERT-base in PyTorch, of the GPU benchmarks, with random weights.

Both are written as PyTorch users write them: ``scaled_dot_product_attention``, which
``torch.compile`` maps to its fastest attention kernel, one matmul for query, key and value.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class _Attention(nn.Module):
    """Multi-head self-attention: (batch, length, hidden) -> (batch, length, hidden)."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.packed, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        split = self.packed(x).reshape(batch, length, 3, self.heads, hidden // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))


class _Layer(nn.Module):
    """Transformer layer: attention and an MLP, each with a residual and a LayerNorm.

    Args:
        hidden: Width.
        heads: Number of attention heads.
        inner: Width inside of the MLP.
        norm_first: Whether a LayerNorm comes before each part (ViT) or after it (BERT).
        eps: Epsilon of the LayerNorms.
    """

    def __init__(self, hidden: int, heads: int, inner: int, norm_first: bool, eps: float) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = _Attention(hidden, heads)
        self.up, self.down = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden, eps) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.norm_first:
            x = x + self.attention(self.norms[0](x))
            return x + self._mlp(self.norms[1](x))
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + self._mlp(x))

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class VitB16(nn.Module):
    """ViT-B/16 (Dosovitskiy et al., 2021): (batch, 3, 224, 224) -> (batch, 1000)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, 768))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 197, 768))
        self.layers = nn.Sequential(*(_Layer(768, 12, 3072, True, 1e-6) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(768, 1e-6), nn.Linear(768, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


class BertBase(nn.Module):
    """Encoder and pooler of BERT-base (Devlin et al., 2019): (batch, length) -> (batch, 768).

    Tokens are of one segment, and none is padding: there is no mask.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(30522, 768), nn.Embedding(512, 768)
        self.segment = nn.Parameter(0.02 * torch.randn(768))
        self.norm = nn.LayerNorm(768, 1e-12)
        self.layers = nn.Sequential(*(_Layer(768, 12, 3072, False, 1e-12) for _ in range(12)))
        self.pool = nn.Linear(768, 768)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Pooled state of the first token."""
        x = self.words(tokens) + self.positions.weight[: tokens.shape[1]] + self.segment
        return torch.tanh(self.pool(self.layers(self.norm(x))[:, 0]))
