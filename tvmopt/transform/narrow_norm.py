"""Let LayerNorm read a 16-bit tensor: its cast to float32 becomes part of its function.

before -> after, for ``x`` in float16::

    wide = astype(x, "float32")
    y = layer_norm(wide, gamma, beta)           # float32
    ->
    y = call_tir(layer_norm, (x, gamma, beta))  # casts while it reads; float32

FuseOps does not fuse a cast into a function that reads elements several times. On a GPU, the later
passes over a row read it from registers, shared memory or cache, and a cast is one instruction.
"""

from __future__ import annotations

import tvm
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.transform.attention.producers import operator_name
from tvmopt.transform.rewrite import rewrite_functions, without_dead_code

_WIDE = "float32"


@tvm.transform.module_pass(opt_level=0, name="ReadNarrowNorms")
class ReadNarrowNorms:
    """Fuse casts of 16-bit floats into the LayerNorms that read them."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to every Relax function of ``mod``."""
        return without_dead_code(rewrite_functions(mod, _FuseCasts(mod)))


@mutator
class _FuseCasts(PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        narrow = self._narrow(call.args[0]) if operator_name(call) == "nn.layer_norm" else None
        if narrow is None:
            return call
        axes, epsilon = [int(axis) for axis in call.attrs.axes], float(call.attrs.epsilon)

        def compute(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
            return topi.nn.layer_norm(topi.cast(x, _WIDE), gamma, beta, axes, epsilon)

        return self.builder_.call_te(
            compute, narrow, *call.args[1:], primfunc_name_hint="layer_norm"
        )

    def _narrow(self, data: relax.Expr) -> relax.Expr | None:
        """Return what ``data`` is cast from, if it is a 16-bit float."""
        cast = self.lookup_binding(data) if isinstance(data, relax.Var) else None
        if not isinstance(cast, relax.Call) or operator_name(cast) != "astype":
            return None
        narrow = cast.args[0]
        wide = str(data.ty.dtype) == _WIDE
        return narrow if wide and str(narrow.ty.dtype) in HALF_FLOATS else None
