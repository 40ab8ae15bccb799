"""Scaled dot-product attention: the problem, and the parts that kernels of all devices share."""

from __future__ import annotations

from tvmopt.kernels.attention.problem import AttentionProblem, MaskedBy

__all__ = ["AttentionProblem", "MaskedBy"]
