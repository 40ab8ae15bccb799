"""Attention in NumPy, and random operands of a problem."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tvmopt.kernels.attention import AttentionProblem, MaskedBy
from tvmopt.kernels.attention.problem import AXES


def numpy_dtype(name: str) -> np.dtype:
    """Return the NumPy dtype of that name."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def operands(problem: AttentionProblem, seed: int = 0) -> list[np.ndarray]:
    """Return random Q, K, V and mask; a boolean mask hides a third of the keys."""
    rng = np.random.default_rng(seed)
    made = []
    for shape, dtype in problem.shapes()[:-1]:
        if dtype == "bool":
            made.append(rng.random(shape) > 0.33)
        else:
            made.append(rng.standard_normal(shape).astype(numpy_dtype(dtype)))
    return made


def attention(problem: AttentionProblem, inputs: list[np.ndarray]) -> np.ndarray:
    """Return the output in float64, with axes as ``problem.out_axes``."""
    p = problem
    q, k, v = (
        x.astype("f8").transpose([axes.index(a) for a in AXES])
        for x, axes in zip(inputs, (p.q_axes, p.k_axes, p.v_axes), strict=False)
    )
    k, v = (np.repeat(x, p.heads // p.kv_heads, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * p.scale
    if p.mask_shape is not None:
        mask = inputs[3]
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if p.causal is not MaskedBy.NOTHING:
        offset = p.keys - p.queries if p.causal is MaskedBy.LAST_KEY else 0
        last = np.arange(p.queries)[:, None] + offset
        scores = np.where(np.arange(p.keys) <= last, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    out = weights @ v / np.where(total > 0, total, 1)
    return out.transpose([AXES.index(a) for a in p.out_axes])
