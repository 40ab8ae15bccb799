"""Blocked attention with an online softmax for CPUs (FlashAttention, arXiv 2205.14135)."""

from __future__ import annotations

from tvmopt.kernels.cpu.attention.kernel import attention_kernel
from tvmopt.kernels.cpu.attention.pays import pays
from tvmopt.kernels.cpu.attention.tiling import AttentionTiling, attention_tiling

__all__ = ["AttentionTiling", "attention_kernel", "attention_tiling", "pays"]
