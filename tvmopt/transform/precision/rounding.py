"""Rounding the kernels of convolutions so that each kernel keeps its sum.

Edge detectors add up to nearly zero: a constant brightness must vanish. Rounded one by one to the
8 bits of bfloat16, the taps of such a kernel no longer cancel, and what is left is multiplied by
the brightness; in networks of depthwise convolutions that is most of the error. Here a few taps,
those where it costs least, go to their other neighbour, until the error of the sum is as small as
it gets. Every tap stays within one unit in the last place.

before -> after, bfloat16: taps ``a, b, c`` with the sum 0 -> ``a', b', c'`` with the sum 0 within
half a unit of the smallest; the nearest values may miss it by one and a half units of the largest.
"""

from __future__ import annotations

import numpy as np

from tvmopt.device import dtypes


def round_keeping_sums(weight: np.ndarray, dtype: str) -> np.ndarray:
    """``weight`` in ``dtype``, each kernel's sum as near as its taps allow.

    Args:
        weight: float32 of shape (outputs, inputs, *taps); finite in ``dtype``.
        dtype: A 16-bit float.

    Returns:
        An array of ``dtype``, of the same shape.
    """
    low = dtypes.dtype(dtype).numpy
    kernels = weight.reshape(weight.shape[0] * weight.shape[1], -1)
    exact = kernels.astype(np.float64)
    nearest = kernels.astype(low)
    rounded = nearest.astype(np.float64)
    with np.errstate(over="ignore"):  # beyond the largest value there is none
        below, above = (
            np.nextafter(nearest, low.type(to)).astype(np.float64) for to in (-np.inf, np.inf)
        )
    # The neighbour on the other side of the exact value; a tap that is exact stays.
    other = np.where(rounded > exact, below, above)
    step = np.where((rounded == exact) | ~np.isfinite(other), 0.0, other - rounded)
    rows = np.arange(len(exact))
    for _ in range(exact.shape[1]):
        error = (rounded - exact).sum(axis=1)
        after = np.where(step != 0.0, np.abs(error[:, None] + step), np.inf)
        tap = after.argmin(axis=1)
        better = after[rows, tap] < np.abs(error)
        if not better.any():
            break
        chosen = rows[better], tap[better]
        rounded[chosen] += step[chosen]
        step[chosen] = 0.0
    return rounded.astype(low).reshape(weight.shape)
