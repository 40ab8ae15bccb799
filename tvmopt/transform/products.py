"""How many narrow products an instruction adds up at once: the depth of a product must divide."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvmopt.device import dtypes

#: Dtypes of the data for which CPUs have dot-product instructions.
DOT_DTYPES = dtypes.names(lambda row: row.dot_k > 1)


def missing_products(dtype: Any, operand: relax.Expr, axis: int) -> int:
    """By how much ``axis`` of an operand falls short of whole groups of products.

    Args:
        dtype: Type of the data.
        operand: An operand of static shape.
        axis: Its axis that is summed over.
    """
    return -int(operand.ty.shape[axis]) % dtypes.dtype(str(dtype)).dot_k
