"""How many narrow products an instruction adds up at once: the depth of a product must divide."""

from __future__ import annotations

from typing import Any

from tvm import relax

#: Products in a 32-bit word, by type of the data: what every instruction that has some takes.
PRODUCTS = {"int8": 4, "uint8": 4, "bfloat16": 2}


def missing_products(dtype: Any, operand: relax.Expr, axis: int) -> int:
    """By how much ``axis`` of an operand falls short of whole groups of products.

    Args:
        dtype: Type of the data.
        operand: An operand of static shape.
        axis: Its axis that is summed over.
    """
    return -int(operand.ty.shape[axis]) % PRODUCTS.get(str(dtype), 1)
