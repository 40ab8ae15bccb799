"""What TF32 tensor cores read of float32 numbers."""

from __future__ import annotations

import numpy as np

_DROPPED = 23 - 10  # bits of the mantissa of float32 that TF32 has not


def truncated(array: np.ndarray) -> np.ndarray:
    """Return a float32 ``array`` with the mantissa's lowest bits zero, as float64."""
    bits = np.ascontiguousarray(array).view(np.uint32) >> _DROPPED << _DROPPED
    return bits.view(np.float32).astype(np.float64)
