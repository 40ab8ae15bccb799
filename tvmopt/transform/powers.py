"""Powers by small constants as products: ``power(x, 2) -> x * x``.

C's ``powf`` takes dozens of instructions, and the fast form of CUDA's takes a logarithm, which a
negative number has none of: what models write as ``(x - mean) ** 2`` would be NaN.
"""

from __future__ import annotations

import functools
from typing import Any

import tvm_ffi
from tvm import relax, te, topi
from tvm.ir import GenericConst

# The largest exponent that becomes a product.
_MOST = 4


def power_by_products(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """For ``relax.transform.LegalizeOps``: ``power`` by one of 0.5, 1, ..., 4 as what it means.

    Other exponents, and those that are no constant, stay as TVM has them.
    """
    base, exponent = call.args
    value = _constant(exponent)
    same = base.ty.shape is not None and tvm_ffi.structural_equal(base.ty.shape, call.ty.shape)
    small = value in (0.5, *range(1, _MOST + 1))
    if value is None or not small or not same or "float" not in str(base.ty.dtype):
        return call.op.get_attr("FLegalize")(builder, call)
    compute = topi.sqrt if value == 0.5 else functools.partial(_product, int(value))
    return builder.call_te(compute, base, primfunc_name_hint="power")


def _product(count: int, x: te.Tensor) -> te.Tensor:
    def element(*i: Any) -> Any:
        one = x[i]
        square = one * one
        return {1: one, 2: square, 3: square * one, 4: square * square}[count]

    return te.compute(x.shape, element, "power")


def _constant(exponent: relax.Expr) -> float | None:
    """The one number that a constant holds everywhere; None where it is none."""
    if not isinstance(exponent, GenericConst):
        return None
    values = exponent.value.numpy()
    return float(values.flat[0]) if values.size == 1 else None
