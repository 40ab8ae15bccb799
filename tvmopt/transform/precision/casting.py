"""Casting constants in NumPy, where NumPy (with ml_dtypes) has the type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tvm import relax

from tvmopt.device import dtypes


def largest(dtype: str) -> float:
    """Largest finite value of a floating type: 65504 for float16."""
    return float(ml_dtypes.finfo(dtypes.dtype(dtype).numpy).max)  # type: ignore[no-untyped-call]


def cast_array(data: np.ndarray, dtype: str) -> np.ndarray:
    """``data`` as ``dtype``, as compiled code casts: to nearest even, to whole numbers truncated.

    Whole numbers outside the range of ``dtype`` saturate, since C leaves that case open.
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
    """A constant of ``data`` as ``dtype``; None when TVM cannot hold it (4-bit types)."""
    if dtypes.dtype(dtype).bits < 8:
        return None
    return relax.const(np.ascontiguousarray(cast_array(data, dtype)), dtype)
