"""Round convolution weights to 16 bits such that each kernel keeps its sum.

The taps of an edge detector sum to nearly zero, so that constant brightness cancels. Rounded one by
one to the 8-bit mantissa of bfloat16, the taps no longer cancel, and the rest is multiplied by the
brightness. In networks of depthwise convolutions this is most of the error. The pass therefore
rounds a few taps to their other neighbour, cheapest first, until the error of the sum is minimal.
Every tap stays within one unit in the last place (ULP).

before -> after, bfloat16: taps ``a, b, c`` with sum 0 -> ``a', b', c'`` with sum 0 within half an
ULP of the smallest tap. Rounding to nearest may miss it by one and a half ULP of the largest.
"""

from __future__ import annotations

import numpy as np

from tvmopt.device import dtypes


def round_keeping_sums(weight: np.ndarray, dtype: str) -> np.ndarray:
    """Round ``weight`` to ``dtype``, with each kernel's sum as exact as its taps allow.

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
    with np.errstate(over="ignore"):  # the largest value has no finite neighbour above
        below, above = (
            np.nextafter(nearest, low.type(to)).astype(np.float64) for to in (-np.inf, np.inf)
        )
    # The neighbour on the other side of the exact value; exact taps do not change.
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
