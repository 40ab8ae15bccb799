"""Raise a softmax that a graph computes step by step.

before -> after: ``e / sum(e, axis)`` with ``e = exp(x - max(x, axis))`` -> ``nn.softmax(x, axis)``.

ONNX Runtime inlines the function body of Softmax in float16 graphs.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.rewrite import rewrite_functions


@mutator
class _Softmax(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        softmax = self._softmax(call)
        return call if softmax is None else softmax

    def _softmax(self, quotient: relax.Expr) -> relax.Expr | None:
        """Return the softmax that ``quotient`` is; None for other calls."""
        operands = _operands(quotient, "divide")
        if operands is None:
            return None
        exponentials, total = operands
        summed = self._reduced(total, "sum")
        exponent = _operands(self._value(exponentials), "exp")
        if summed is None or exponent is None or not summed[0].same_as(exponentials):
            return None
        difference = _operands(self._value(exponent[0]), "subtract")
        if difference is None:
            return None
        x, top = difference
        largest = self._reduced(top, "max")
        if largest is None or not largest[0].same_as(x) or largest[1] != summed[1]:
            return None
        return relax.op.nn.softmax(x, summed[1])

    def _reduced(self, expr: relax.Expr, name: str) -> tuple[relax.Expr, int] | None:
        """Return operand and axis of a reduction over one axis, which is kept."""
        call = self._value(expr)
        operands = _operands(call, name)
        if operands is None or not call.attrs.keepdims or len(call.attrs.axis or ()) != 1:
            return None
        return operands[0], int(call.attrs.axis[0]) % call.args[0].ty.ndim

    def _value(self, expr: relax.Expr) -> relax.Expr:
        bound = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return expr if bound is None else bound


def _operands(expr: relax.Expr, name: str) -> list[relax.Expr] | None:
    """Return the operands of a call of ``relax.<name>``; None for other expressions."""
    named = isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op)
    return list(expr.args) if named and expr.op.name == f"relax.{name}" else None


@tvm.transform.module_pass(opt_level=0, name="RaiseSoftmax")
class RaiseSoftmax:
    """Replace the steps of a softmax by the operator; see the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to every Relax function of ``mod``."""
        return rewrite_functions(mod, _Softmax(mod))
