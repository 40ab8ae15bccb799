"""Remove casts of 16-bit floats to float32 and back.

before -> after, behind attention in float16, whose matmuls were separate layers before::

    y = astype(astype(x, "float32"), "float16")  ->  y = x

Neither cast rounds. Fusion does not remove the pair, and between two kernels it is a third one.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.transform.rewrite import rewrite_functions, without_dead_code

_CAST, _WIDE = "relax.astype", "float32"


@tvm.transform.module_pass(opt_level=0, name="RemoveCastPairs")
class RemoveCastPairs:
    """Remove casts to float32 and back; see the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to every Relax function of ``mod``."""
        return without_dead_code(rewrite_functions(mod, _Remove(mod)))


@mutator
class _Remove(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if getattr(call.op, "name", "") != _CAST or not isinstance(call.args[0], relax.Var):
            return call
        wide = self.lookup_binding(call.args[0])
        if getattr(getattr(wide, "op", None), "name", "") != _CAST:
            return call
        narrow, dtype = wide.args[0], str(op.ty.dtype)
        back = dtype in HALF_FLOATS and str(narrow.ty.dtype) == dtype
        return narrow if back and str(wide.ty.dtype) == _WIDE else call
