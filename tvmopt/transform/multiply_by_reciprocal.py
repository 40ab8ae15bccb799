"""Multiply by the reciprocal of a constant, behind convolutions and matmuls.

before -> after, h-swish and the quantize behind a convolution:
    divide(divide(multiply(y, clip(y + 3, 0, 6)), 6), scale)
    -> multiply(multiply(y, clip(y + 3, 0, 6)), 1 / (6 * scale))

A vector division takes 10 to 16 cycles on x86, a multiplication half a cycle: two divisions took
more time than the convolution in front of them. A result differs from the quotient by 1 ulp at
most for each factor. Divisions that follow no convolution or matmul stay, so that tables (means
over trees, for example) give the numbers of their source.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.anchors import is_anchor
from tvmopt.transform.layer_facts import is_elementwise
from tvmopt.transform.precision.anchor_call import constant_data
from tvmopt.transform.rewrite import rewrite_functions

_DIVIDE, _MULTIPLY = "relax.divide", "relax.multiply"


@tvm.transform.module_pass(opt_level=0, name="MultiplyByReciprocal")
class MultiplyByReciprocal:
    """Replace divisions by constants behind anchors; see the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to every Relax function of ``mod``."""
        return rewrite_functions(mod, _Reciprocals(mod))


@mutator
class _Reciprocals(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._behind_anchor = _behind_anchors(mod)

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        found = _scaled(call)
        if found is None or not self._behind_anchor.intersection(op.args):
            return call
        data, factor = found
        inner = _scaled(self.lookup_binding(data)) if isinstance(data, relax.Var) else None
        merged = None if inner is None else _merged(inner, factor)
        if merged is not None:
            data, factor = merged
        elif call.op.name == _MULTIPLY:
            return call
        return relax.op.multiply(data, relax.const(factor.astype("float32"), "float32"))


def _behind_anchors(mod: tvm.IRModule) -> set[relax.Var]:
    """Return the variables of anchors and of elementwise operators behind them."""
    found: set[relax.Var] = set()

    def visit(expr: relax.Expr) -> None:
        if not isinstance(expr, relax.SeqExpr):
            return
        for binding in (binding for block in expr.blocks for binding in block.bindings):
            value = binding.value
            if isinstance(value, relax.If):
                visit(value.true_branch)
                visit(value.false_branch)
            elif is_anchor(value) or (
                isinstance(value, relax.Call)
                and is_elementwise(value)
                and any(arg in found for arg in value.args if isinstance(arg, relax.Var))
            ):
                found.add(binding.var)

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            visit(func.body)
    return found


_Scaled = tuple[relax.Expr, np.ndarray]


def _scaled(expr: relax.Expr | None) -> _Scaled | None:
    """Return data and factor of a float32 multiplication or division by a constant."""
    name = getattr(expr.op, "name", "") if isinstance(expr, relax.Call) else ""
    if name not in (_DIVIDE, _MULTIPLY):
        return None
    assert isinstance(expr, relax.Call)
    data, other = expr.args
    if name == _MULTIPLY and constant_data(other) is None:
        data, other = other, data
    constant = constant_data(other)
    if constant is None or str(constant.dtype) != "float32":
        return None
    factor = constant.numpy().astype("float64")
    inverse = factor if name == _MULTIPLY else reciprocal(factor)
    return None if inverse is None else (data, inverse)


def _merged(inner: _Scaled, factor: np.ndarray) -> _Scaled | None:
    """Return data and factor of two multiplications, the inner one by a scalar."""
    data, first = inner
    product = _normal(first * factor)
    if product is None or first.size != 1 or first.ndim > data.ty.ndim:
        return None
    return data, product


def reciprocal(values: np.ndarray) -> np.ndarray | None:
    """Return ``1 / values`` in float64; None where float32 holds one only as 0 or infinity."""
    with np.errstate(divide="ignore"):
        return _normal(1 / values.astype("float64"))


def _normal(values: np.ndarray) -> np.ndarray | None:
    """Return ``values`` if all are finite, normal float32 numbers."""
    info = np.finfo("float32")
    size = np.abs(values)
    return np.asarray(values) if ((size >= info.tiny) & (size <= info.max)).all() else None
