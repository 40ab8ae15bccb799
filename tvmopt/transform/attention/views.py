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
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.kernels.attention.problem import ATTENTION_ATTR
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
class _Views(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, attention: set[str]) -> None:
        super().__init__(mod)
        self._mod, self._attention = mod, attention
        self._uses = uses_of(mod["main"])
        self._made = {
            binding.var: binding.value
            for block in mod["main"].body.blocks
            for binding in block.bindings
        }
        self._var: relax.Var | None = None

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._var = binding.var
        super().visit_var_binding_(binding)

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        var, self._var = self._var, None
        call = self.visit_expr_post_order(op)
        # The result of the function itself must be memory of its own.
        if not isinstance(var, relax.DataflowVar) or not self._reshapes(op):
            return call
        [source] = op.args[1].fields
        users = self._uses.get(var, [])
        if self._is_attention(self._made.get(source)) or (
            users and all(user and self._is_attention(user.value) for user in users)
        ):
            return relax.op.reshape(call.args[1].fields[0], op.ty.shape)
        return call

    def _reshapes(self, op: relax.Call) -> bool:
        name = _called(op)
        if not name or len(op.args[1].fields) != 1 or len(op.args) != 2:
            return False
        return bool(relax.analysis.has_reshape_pattern(self._mod[name]))

    def _is_attention(self, value: relax.Expr | None) -> bool:
        return value is not None and _called(value) in self._attention


def _called(value: relax.Expr) -> str:
    """Return the name of the TensorIR function that ``value`` calls; empty for others."""
    if isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir":
        return str(value.args[0].name_hint)
    return ""
