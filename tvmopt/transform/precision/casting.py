"""Cast constants with NumPy, for dtypes that NumPy or ml_dtypes supports."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tvm import relax

from tvmopt.device import dtypes


def largest(dtype: str) -> float:
    """Return the largest finite value of a floating-point dtype: 65504 for float16."""
    return float(ml_dtypes.finfo(dtypes.dtype(dtype).numpy).max)  # type: ignore[no-untyped-call]


def cast_array(data: np.ndarray, dtype: str) -> np.ndarray:
    """Cast ``data`` to ``dtype`` as compiled code does: nearest even, or truncation to integers.

    Integers outside the range of ``dtype`` saturate, since C leaves that case undefined.
    """
    row = dtypes.dtype(dtype)
    target = row.numpy
    if row.is_integer:
        whole = np.nan_to_num(np.trunc(np.asarray(data, np.float64)), nan=0.0)
        wide = np.clip(whole, float(row.lowest), float(row.highest)).astype(np.int64)
        return wide.astype(target)
    with np.errstate(over="ignore"):
        return data.astype(target)


def cast_constant(data: np.ndarray, dtype: str) -> relax.Expr | None:
    """Return a constant of ``data`` cast to ``dtype``; None for 4-bit dtypes, which TVM lacks."""
    if dtypes.dtype(dtype).bits < 8:
        return None
    return relax.const(np.ascontiguousarray(cast_array(data, dtype)), dtype)
