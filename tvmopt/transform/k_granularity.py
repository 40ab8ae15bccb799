"""K granularity of dot-product instructions (4 for VNNI int8, 2 for bfloat16), for padding K."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvmopt.device import dtypes

#: Data dtypes for which CPUs have dot-product instructions.
DOT_DTYPES = dtypes.names(lambda row: row.dot_k > 1)


def missing_k(dtype: Any, operand: relax.Expr, axis: int) -> int:
    """Return the padding of ``axis`` up to a multiple of the K granularity.

    Args:
        dtype: dtype of the data.
        operand: An operand of static shape.
        axis: Its reduction axis.
    """
    return missing(str(dtype), int(operand.ty.shape[axis]))


def missing(dtype: str, depth: int) -> int:
    """Return what ``depth`` lacks to a multiple of the K granularity of ``dtype``."""
    return -depth % dtypes.dtype(dtype).dot_k
