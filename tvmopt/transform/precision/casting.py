"""Casting constants in NumPy, where NumPy (with ml_dtypes) has the type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tvm import relax

_EXTENSION = {"bfloat16": ml_dtypes.bfloat16, "int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}


def numpy_dtype(dtype: str) -> np.dtype:
    """NumPy's type of TVM's name of it: ``"bfloat16"`` -> that of ml_dtypes."""
    return np.dtype(_EXTENSION.get(dtype, dtype))


def largest(dtype: str) -> float:
    """Largest finite value of a floating type: 65504 for float16."""
    return float(ml_dtypes.finfo(numpy_dtype(dtype)).max)  # type: ignore[no-untyped-call]


def cast_array(data: np.ndarray, dtype: str) -> np.ndarray:
    """``data`` as ``dtype``, as compiled code casts: to nearest even, to whole numbers truncated.

    Whole numbers outside the range of ``dtype`` saturate, since C leaves that case open.
    """
    target = numpy_dtype(dtype)
    if target.kind in "iu" or dtype in ("int4", "uint4"):
        info = ml_dtypes.iinfo(target)  # type: ignore[no-untyped-call]
        whole = np.nan_to_num(np.trunc(np.asarray(data, np.float64)), nan=0.0)
        wide = np.clip(whole, float(info.min), float(info.max)).astype(np.int64)
        return wide.astype(target)
    with np.errstate(over="ignore"):
        return data.astype(target)


def cast_constant(data: np.ndarray, dtype: str) -> relax.Expr | None:
    """A constant of ``data`` as ``dtype``; None when TVM cannot hold it (4-bit types)."""
    if dtype in ("int4", "uint4"):
        return None
    return relax.const(np.ascontiguousarray(cast_array(data, dtype)), dtype)
