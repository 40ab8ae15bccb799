"""Attention as a plain TensorIR function, the reference and the fallback of attention kernels.

The blocks, with their extents: ``scores`` (batch, head, query, key), ``row_max`` and ``row_sum``
(batch, head, query), ``weights`` as ``scores``, ``weighted`` and the output (batch, head, query,
size of V). All but the output are float32 and in memory, so that TVM's default schedule compiles
each block as a separate kernel on any device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import te, tirx
from tvm.ir import Expr

from tvmopt.kernels.attention.problem import ATTENTION_ATTR, AXES, AttentionProblem, MaskedBy
from tvmopt.kernels.scheduled import OPAQUE

_FLOAT32 = "float32"
_MOST_INT32 = 2**31 - 1
# An additive mask may hold the lowest float32, which an identity of that value would not exceed.
_MAXIMUM = te.comm_reducer(
    lambda a, b: tirx.max(a, b), lambda _: tirx.const(-math.inf, _FLOAT32), name="maximum"
)


def attention_function(problem: AttentionProblem) -> tirx.PrimFunc:
    """Return the function that computes ``problem``: parameters Q, K, V, [mask], output.

    Scores, softmax and accumulators are float32. A query that sees no key gives zeros.
    """
    p = problem
    shapes = p.shapes()
    names = ["q", "k", "v", *(["mask"] if p.mask_shape is not None else [])]
    inputs = [
        te.placeholder(shape, dtype, name=name)
        for name, (shape, dtype) in zip(names, shapes, strict=False)
    ]
    q, k, v = inputs[:3]
    mask = inputs[3] if p.mask_shape is not None else None
    shared = p.heads // p.kv_heads
    size, key = te.reduce_axis((0, p.head_size), "d"), te.reduce_axis((0, p.keys), "t")
    maximum = te.reduce_axis((0, p.keys), "t")
    total = te.reduce_axis((0, p.keys), "t")
    rows = (p.batch, p.heads, p.queries)
    q_head, k_head, v_head = p.first_heads

    def product(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
        left = _at(q, p.q_axes, (b, h + q_head, s, size)).astype(_FLOAT32)
        right = _at(k, p.k_axes, (b, h // shared + k_head, t, size)).astype(_FLOAT32)
        return te.sum(left * right, size)

    products = te.compute((*rows, p.keys), product, "products")
    scores = te.compute(
        (*rows, p.keys),
        lambda b, h, s, t: _masked(
            p, mask, products[b, h, s, t] * tirx.const(p.scale, _FLOAT32), (b, h, s, t)
        ),
        "scores",
    )
    row_max = te.compute(
        rows, lambda b, h, s: _MAXIMUM(scores[b, h, s, maximum], axis=maximum), "row_max"
    )
    zero, lowest = tirx.const(0, _FLOAT32), tirx.const(-math.inf, _FLOAT32)

    def weight(b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
        top = row_max[b, h, s]
        return te.exp(scores[b, h, s, t] - tirx.Select(top > lowest, top, zero))

    weights = te.compute((*rows, p.keys), weight, "weights")
    row_sum = te.compute(rows, lambda b, h, s: te.sum(weights[b, h, s, total], total), "row_sum")
    weighted = te.compute(
        (*rows, p.value_size),
        lambda b, h, s, d: te.sum(
            weights[b, h, s, key]
            * _at(v, p.v_axes, (b, h // shared + v_head, key, d)).astype(_FLOAT32),
            key,
        ),
        "weighted",
    )

    def normalised(*index: Expr) -> Expr:
        b, h, s, d = (index[p.out_axes.index(axis)] for axis in AXES)
        whole = row_sum[b, h, s]
        some = weighted[b, h, s, d] / tirx.Select(whole > zero, whole, tirx.const(1, _FLOAT32))
        return some.astype(p.dtype)

    out = te.compute(shapes[-1][0], normalised, "out")
    many = math.prod((*rows, p.keys)) > _MOST_INT32
    func = te.create_prim_func([*inputs, out], index_dtype_override="int64" if many else None)
    return (
        func.with_attr(ATTENTION_ATTR, p.to_json())
        .with_attr("op_pattern", OPAQUE)
        .without_attr("global_symbol")
    )


def _at(tensor: te.Tensor, axes: str, index: Sequence[Expr]) -> Expr:
    """Return the element at ``index``, in the order of ``"bhsd"``."""
    return tensor[tuple(index[AXES.index(axis)] for axis in axes)]


def _masked(
    p: AttentionProblem, mask: te.Tensor | None, score: Expr, index: tuple[Expr, ...]
) -> Expr:
    """Return the score with both masks applied."""
    _, _, s, t = index
    lowest = tirx.const(-math.inf, _FLOAT32)
    if mask is not None:
        place = [0 if e == 1 else i for e, i in zip(mask.shape, index, strict=True)]
        value = mask[tuple(place)]
        if p.mask_dtype == "bool":
            score = tirx.Select(value, score, lowest)
        else:
            score = score + value.astype(_FLOAT32)
    if p.causal is not MaskedBy.NOTHING:
        last = s if p.causal is MaskedBy.FIRST_KEY else s + (p.keys - p.queries)
        score = tirx.Select(t <= last, score, lowest)
    return score
