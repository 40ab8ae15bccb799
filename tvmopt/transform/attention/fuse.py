"""Attention as one function.

before -> after, for Q of shape (1, 16, 12, 64) in memory, the others alike::

    lv0 = permute_dims(q, [0, 2, 1, 3])
    lv1 = matmul(lv0, permute_dims(k, [0, 2, 3, 1])) * 0.125
    lv2 = matmul(softmax(lv1 + mask), permute_dims(v, [0, 2, 1, 3]))
    out = permute_dims(lv2, [0, 2, 1, 3])
    ->
    out = call_tir(attention, (q, k, v, mask))

The pass runs on the converted module, so that conversions see both matmuls: their dtypes, and
whether they are skipped. The layers of both matmuls are layers of the module no more.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TypeAlias

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import mutator

from tvmopt.transform.anchors import anchors, is_anchor, with_layers
from tvmopt.transform.attention.attention_call import AttentionCall, arguments, attention_call
from tvmopt.transform.attention.kernels import AttentionKernel
from tvmopt.transform.attention.match import attention_of
from tvmopt.transform.attention.output import output_of
from tvmopt.transform.attention.producers import Producers
from tvmopt.transform.bound_calls import BoundCallMutator

_Call: TypeAlias = "tuple[AttentionCall, tirx.PrimFunc]"


@tvm.transform.module_pass(opt_level=0, name="FuseAttention")
class FuseAttention:
    """Replace attention in ``main`` by calls of one function each.

    Args:
        kernel: Returns the function of a problem; None where separate operators stay.
    """

    def __init__(self, kernel: AttentionKernel) -> None:
        self._kernel = functools.cache(kernel)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        found = find_attention(mod["main"])
        taken = {
            var: (call, function)
            for var, call in found.items()
            if (function := self._kernel(call.problem)) is not None
        }
        if not taken:
            return mod
        fused = {var for call, _ in taken.values() for var in call.found.matmuls}
        kept = [anchor for anchor in anchors(mod) if anchor.var not in fused]
        rewrite = _Fuse(mod, taken)
        main = mod.get_global_var("main")
        rewrite.builder_.update_func(main, rewrite.visit_expr(mod["main"]))
        out = relax.transform.DeadCodeElimination(["main"])(rewrite.builder_.get())
        return with_layers(out, [a.name for a in kept], [a.index for a in kept])


def find_attention(main: relax.Function) -> dict[relax.Var, AttentionCall]:
    """Return the attention in ``main``, by the variable that its output replaces."""
    graph = Producers(main)
    calls: dict[relax.Var, AttentionCall] = {}
    for block in main.body.blocks:
        for binding in block.bindings:
            found = attention_of(binding.var, graph) if is_anchor(binding.value) else None
            if found is not None:
                call = attention_call(found, output_of(found, graph), graph)
                if call is not None:
                    calls[call.output.var] = call
    return calls


@mutator
class _Fuse(BoundCallMutator):
    def __init__(self, mod: tvm.IRModule, calls: Mapping[relax.Var, _Call]) -> None:
        super().__init__(mod)
        self._calls = calls

    def replacement(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        if var not in self._calls:
            return None
        fused, kernel = self._calls[var]
        emit = self.builder_.emit
        args = [self.visit_expr(arg) for arg in arguments(fused)]
        args = [arg if isinstance(arg, relax.Var) else emit(arg) for arg in args]
        function = self.builder_.add_func(kernel, "attention")
        shape, dtype = fused.problem.shapes()[-1]
        out = relax.op.call_tir(function, args, relax.TensorType(shape, dtype))
        wanted = call.ty.shape
        if len(wanted) == len(shape):
            return out
        return relax.op.reshape(emit(out), wanted)
