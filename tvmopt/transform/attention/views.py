"""Reshapes beside attention on a CPU: views instead of copies.

before -> after::

    lv0 = call_tir(reshape, (x,), (1, 128, 12, 64))         lv0 = reshape(x, (1, 128, 12, 64))
    lv1 = call_tir(attention, (lv0, k, v))              ->  lv1 = call_tir(attention, (lv0, k, v))
    lv2 = call_tir(reshape1, (lv1,), (128, 768))            lv2 = reshape(lv1, (128, 768))

Elsewhere on a CPU a reshape is part of a fused function.
"""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import mutator

from tvmopt.kernels.attention.problem import ATTENTION_ATTR
from tvmopt.kernels.call_tir import called_function
from tvmopt.transform.bound_calls import BoundCallMutator
from tvmopt.transform.uses import uses_of


@tvm.transform.module_pass(opt_level=0, name="ViewsBesideAttention")
class ViewsBesideAttention:
    """Turn functions that only reshape an operand or the output of attention into views."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        attention = {
            var.name_hint
            for var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and ATTENTION_ATTR in (func.attrs or {})
        }
        if not attention:
            return mod
        rewrite = _Views(mod, attention)
        main = mod.get_global_var("main")
        rewrite.builder_.update_func(main, rewrite.visit_expr(mod["main"]))
        return relax.transform.DeadCodeElimination(["main"])(rewrite.builder_.get())


@mutator
class _Views(BoundCallMutator):
    def __init__(self, mod: tvm.IRModule, attention: set[str]) -> None:
        super().__init__(mod)
        self._mod, self._attention = mod, attention
        self._uses = uses_of(mod["main"])
        self._made = {
            binding.var: binding.value
            for block in mod["main"].body.blocks
            for binding in block.bindings
        }

    def replacement(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        # An output of main must not share memory with another tensor.
        if not isinstance(var, relax.DataflowVar) or not self._reshapes(call):
            return None
        [source] = call.args[1].fields
        users = self._uses.get(var, [])
        if self._is_attention(self._made.get(source)) or (
            users and all(user and self._is_attention(user.value) for user in users)
        ):
            return relax.op.reshape(self.visit_expr(source), call.ty.shape)
        return None

    def _reshapes(self, call: relax.Call) -> bool:
        name = called_function(call)
        if not name or len(call.args[1].fields) != 1 or len(call.args) != 2:
            return False
        return bool(relax.analysis.has_reshape_pattern(self._mod[name]))

    def _is_attention(self, value: relax.Expr | None) -> bool:
        return value is not None and called_function(value) in self._attention
