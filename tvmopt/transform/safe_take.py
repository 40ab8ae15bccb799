"""Bounds-safe gathers: an index out of range never reads outside the table.

before -> after: ``take(table, ids, mode="fast")`` -> ``take(table, ids, mode="nan")``, or
``mode="clip"`` for integer tables.

In TVM's mode "fast", an index out of range reads other memory or crashes the process. ONNX Runtime
rejects such an index. Compiled code cannot reject it, so it returns NaN where the dtype has one,
and the nearest row otherwise. Constant indices do not change, because the reference ran with them.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator


@mutator
class _Guard(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.take":
            return call
        table, indices = call.args
        known = self.lookup_binding(indices) if isinstance(indices, relax.Var) else indices
        if call.attrs.mode != "fast" or isinstance(known, GenericConst):
            return call
        has_nan = "float" in str(table.ty.dtype)
        return relax.op.take(table, indices, call.attrs.axis, "nan" if has_nan else "clip")


@tvm.transform.module_pass(opt_level=0, name="GuardTake")
class GuardTake:
    """Make every gather with a computed index bounds-safe; see the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to every Relax function of ``mod``."""
        guard = _Guard(mod)
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                guard.builder_.update_func(var, guard.visit_expr(func))
        return guard.builder_.get()
