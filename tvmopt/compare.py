"""How far two arrays are apart: one definition for import, build, load and evaluation."""

from __future__ import annotations

import numpy as np

TOLERANCE = 1e-3
"""Largest deviation allowed for a float32 model."""
HALF_TOLERANCE = 2e-2
"""The same for a model that computes in float16 or bfloat16."""
QUANTISED_TOLERANCE = 5e-2
"""The same for a model that quantises activations."""


def deviation(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest absolute difference, relative to the largest absolute value of ``expected`` (>= 1).

    For integers and booleans: the share of elements that differ. Infinite where shapes differ or
    only one side holds NaN or an infinity.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    if expected.dtype.kind in "iub":
        return float(np.mean(actual != expected))
    with np.errstate(invalid="ignore", over="ignore"):
        a, e = actual.astype(np.float64), expected.astype(np.float64)
        same = (a == e) | (np.isnan(a) & np.isnan(e))
        difference = np.where(same, 0.0, np.abs(a - e))
    finite = np.abs(e[np.isfinite(e)])
    worst = difference.max() / max(1.0, finite.max() if finite.size else 1.0)
    return float(worst) if np.isfinite(worst) else float("inf")
