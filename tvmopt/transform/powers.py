"""Legalize powers with small constant exponents as multiplications: ``power(x, 2) -> x * x``.

C's ``powf`` takes dozens of instructions. CUDA's fast version uses a logarithm, which is NaN for a
negative base, so ``(x - mean) ** 2`` would be NaN.
"""

from __future__ import annotations

import functools
from typing import Any

import tvm_ffi
from tvm import relax, te, topi
from tvm.ir import GenericConst

# Largest exponent that becomes multiplications.
_MOST = 4


def power_by_products(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``power`` with a constant exponent of 0.5, 1, 2, 3 or 4 as sqrt or multiplications.

    Other exponents use TVM's legalization.
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
    """Return the value of a constant with one element; otherwise None."""
    if not isinstance(exponent, GenericConst):
        return None
    values = exponent.value.numpy()
    return float(values.flat[0]) if values.size == 1 else None
