"""Attention operators of Relax as matmuls, which conversions and :class:`FuseAttention` know.

before -> after, for Q, K and V of shape (batch, length, heads, size)::

    out = nn.attention(q, k, v, bias, scale)
    ->
    lv0 = matmul(permute_dims(q, [0, 2, 1, 3]), permute_dims(k, [0, 2, 3, 1])) * scale + bias
    out = permute_dims(matmul(softmax(lv0), permute_dims(v, [0, 2, 1, 3])), [0, 2, 1, 3])

PyTorch's ``scaled_dot_product_attention`` is imported as such an operator.
"""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.transform.anchors import anchors, with_layers
from tvmopt.transform.integer.values import static_shape

_NAMES = ("relax.nn.attention", "relax.nn.attention_bias")
_TO_HEADS = [0, 2, 1, 3]


@tvm.transform.module_pass(opt_level=0, name="DecomposeAttention")
class DecomposeAttention:
    """Rewrite ``nn.attention`` of ``main`` as two matmuls; both are of the operator's layer."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to ``main``."""
        before = anchors(mod)
        rewrite = _Decompose(mod)
        main = mod.get_global_var("main")
        made = rewrite.visit_expr(mod["main"])
        if not rewrite.count:
            return mod
        rewrite.builder_.update_func(main, made)
        layers = [a for a in before for _ in range(2 if _is_attention(a.call) else 1)]
        out = rewrite.builder_.get()
        return with_layers(out, [a.name for a in layers], [a.index for a in layers])


def _is_attention(expr: relax.Expr) -> bool:
    is_operator = isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op)
    return is_operator and expr.op.name in _NAMES


@mutator
class _Decompose(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.count = 0

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not _is_attention(call) or call.attrs.window_size is not None:
            return call
        of_q, of_k = (static_shape(arg) for arg in call.args[:2])
        if of_q is None or of_k is None:
            return call
        self.count += 1
        return self._decomposed(call, of_q, of_k)

    def _decomposed(
        self, call: relax.Call, of_q: tuple[int, ...], of_k: tuple[int, ...]
    ) -> relax.Expr:
        emit, op = self.builder_.emit, relax.op
        q, k, v = call.args[:3]
        dtype = str(q.ty.dtype)
        scale = call.attrs.scale
        factor = of_q[-1] ** -0.5 if scale is None else float(scale.value)
        heads = emit(op.permute_dims(q, _TO_HEADS))
        keys = emit(op.permute_dims(k, [0, 2, 3, 1]))
        scores = emit(op.matmul(heads, keys))
        scores = emit(op.multiply(scores, relax.const(factor, dtype)))
        if len(call.args) > 3:
            scores = emit(op.add(scores, call.args[3]))
        if (mask := _causal(call.attrs.causal_mask, of_q[1], of_k[1])) is not None:
            scores = emit(op.add(scores, relax.const(mask, dtype)))
        weights = emit(op.nn.softmax(scores, -1))
        values = emit(op.permute_dims(v, _TO_HEADS))
        return op.permute_dims(emit(op.matmul(weights, values)), _TO_HEADS)


def _causal(kind: str | None, queries: int, keys: int) -> np.ndarray | None:
    """Return the additive mask of ``TopLeft`` or ``BottomRight``; None without a mask."""
    if kind is None:
        return None
    after = 1 if str(kind) == "TopLeft" else 1 + keys - queries
    hidden = np.triu(np.ones((queries, keys), bool), after)
    return np.where(hidden, np.float32(-math.inf), np.float32(0))
