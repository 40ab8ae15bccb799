"""TMP"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.layout.raise_tir import RaiseTensorIR


@mutator
class _Raise(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._raise = RaiseTensorIR(mod)

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.call_tir":
            return call
        return self._raise(call)


@tvm.transform.module_pass(opt_level=0, name="RaiseTensorIR")
class RaisePass:
    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        raising = _Raise(mod)
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                raising.builder_.update_func(var, raising.visit_expr(func))
        return raising.builder_.get()
