"""Merge consecutive reshapes into one, which on a GPU is a view.

before -> after: ``reshape(squeeze(x), shape)`` -> ``reshape(x, shape)``. A fused function of two
reshapes would be a copy.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.integer.values import static_shape
from tvmopt.transform.rewrite import rewrite_functions

_RESHAPES = ("relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.flatten")


@tvm.transform.module_pass(opt_level=0, name="MergeReshapes")
class MergeReshapes:
    """Merge reshapes of reshapes; shapes must be static."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to every Relax function of ``mod``."""
        return rewrite_functions(mod, _Merge(mod))


@mutator
class _Merge(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        shape = static_shape(op)
        if not _is_reshape(call) or shape is None:
            return call
        source = call.args[0]
        while isinstance(source, relax.Var) and _is_reshape(made := self.lookup_binding(source)):
            source = made.args[0]
        return call if source.same_as(call.args[0]) else relax.op.reshape(source, shape)


def _is_reshape(expr: relax.Expr | None) -> bool:
    if not isinstance(expr, relax.Call) or not isinstance(expr.op, tvm.ir.Op):
        return False
    return expr.op.name in _RESHAPES
