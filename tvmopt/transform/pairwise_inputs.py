"""Rewrite ONNX Max, Min, Sum and Mean of several tensors as elementwise operators, without a copy.

before -> after: ``max(stack((broadcast_to(a), b, c), axis=0), axis=0)`` ->
``maximum(maximum(a, b), c)``; likewise for ``min``, and for ``sum`` with ``add``; ``mean`` divides
the sum.

TVM's importer emits the first version, a reduction. It copies all tensors, no convolution fuses
with it, and max and min lose NaN of all tensors but the last. The second version propagates NaN of
any tensor (:mod:`tvmopt.kernels.passes.keep_nan`), as ONNX Runtime does.
"""

from __future__ import annotations

import functools

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.rewrite import rewrite_functions

_PAIRWISE = {
    "relax.max": relax.op.maximum,
    "relax.min": relax.op.minimum,
    "relax.sum": relax.op.add,
    "relax.mean": relax.op.add,
}


@mutator
class _Pairwise(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if _name(call) not in _PAIRWISE or call.attrs.keepdims or not call.attrs.axis:
            return call
        stack = self._value(call.args[0])
        if _name(stack) != "relax.stack":
            return call
        axes = [int(axis) for axis in call.attrs.axis]
        tensors = self._value(stack.args[0])
        if axes != [int(stack.attrs.axis)] or not isinstance(tensors, relax.Tuple):
            return call
        fields = list(tensors.fields)
        if len(fields) > 1:  # the first operand sets the shape
            fields[1:] = [self._narrow(field) for field in fields[1:]]
        pairwise = _PAIRWISE[_name(call)]
        found = functools.reduce(lambda a, b: self.builder_.normalize(pairwise(a, b)), fields)
        if _name(call) == "relax.mean":
            count = relax.const(len(fields), found.ty.dtype)
            return self.builder_.normalize(relax.op.divide(found, count))
        return found

    def _value(self, expr: relax.Expr) -> relax.Expr:
        bound = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return expr if bound is None else bound

    def _narrow(self, expr: relax.Expr) -> relax.Expr:
        """Return the operand of a broadcast; other expressions are returned unchanged."""
        value = self._value(expr)
        return value.args[0] if _name(value) == "relax.broadcast_to" else expr


def _name(expr: relax.Expr) -> str:
    is_operator = isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op)
    return str(expr.op.name) if is_operator else ""


@tvm.transform.module_pass(opt_level=0, name="PairwiseInputs")
class PairwiseInputs:
    """Rewrite reductions of stacked tensors pairwise; see the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to every Relax function of ``mod``."""
        return rewrite_functions(mod, _Pairwise(mod))
