"""Find ``softmax(scale * Q K^T + mask) V`` from its last matmul on.

::

    scores = matmul(q, kt)                          # q, k: scaled, cast, transposed, repeated
    scores = scores * c, scores / c, scores + mask, where(mask, scores, -inf)      # in any order
    weights = softmax(scores)                       # and where(hidden row, 0, weights)
    out = matmul(weights, v)                        # and a cast to the dtype of v
"""

from __future__ import annotations

import dataclasses

from tvm import relax

from tvmopt.transform.attention.guards import hidden_rows, is_zero
from tvmopt.transform.attention.masks import FoundMask, masked
from tvmopt.transform.attention.operand import AttentionOperand, operand
from tvmopt.transform.attention.producers import Producers
from tvmopt.transform.integer.values import static_shape

_AXES = {2: "", 3: "h", 4: "bh"}  # of a matmul's operands, before their last two


@dataclasses.dataclass(frozen=True)
class FoundAttention:
    """Attention in a graph.

    Attributes:
        q: Q; ``scale`` of Q and K multiplies with :attr:`scale`.
        k: K.
        v: V.
        scale: Factor on the scores.
        masks: What is added to them.
        matmuls: The variables of both matmuls.
        result: The variable of the result, in the dtype of Q: the last matmul or a cast of it.
        axes: A letter for each axis of ``result``.
    """

    q: AttentionOperand
    k: AttentionOperand
    v: AttentionOperand
    scale: float
    masks: tuple[FoundMask, ...]
    matmuls: tuple[relax.Var, relax.Var]
    result: relax.Var
    axes: str


@dataclasses.dataclass(frozen=True)
class _Scores:
    """The way from a softmax back to the first matmul.

    Attributes:
        value: The scores at this place.
        scale: Factor on them, up to the softmax.
        masks: What is added, up to the softmax.
    """

    value: relax.Expr
    scale: float = 1.0
    masks: tuple[FoundMask, ...] = ()


def attention_of(var: relax.Var, graph: Producers) -> FoundAttention | None:
    """Return the attention whose last matmul is ``var``; None if it is another matmul."""
    matmul = graph.call(var, "matmul")
    shape = static_shape(var)
    if matmul is None or shape is None or len(shape) not in _AXES:
        return None
    if any(len(static_shape(arg) or ()) != len(shape) for arg in matmul.args):
        return None
    softmax, guarded = _weights(matmul.args[0], var, graph)
    if softmax is None:
        return None
    scores = _scores(softmax, static_shape(softmax) or (), graph)
    if scores is None or not set(guarded) <= {mask.added for mask in scores.masks}:
        return None
    first = graph.call(scores.value, "matmul")
    assert first is not None
    outer = _AXES[len(shape)]
    q = operand(first.args[0], f"{outer}sd", graph, scaled=True)
    k = operand(first.args[1], f"{outer}ds", graph, scaled=True)
    v = operand(matmul.args[1], f"{outer}sd", graph, scaled=False)
    result = _in_dtype(var, str(matmul.args[1].ty.dtype), graph)
    if q is None or k is None or v is None or result is None:
        return None
    if not q.dtype == k.dtype == v.dtype or q.shared > 1:
        return None
    return FoundAttention(
        q, k, v, scores.scale, scores.masks, (scores.value, var), result, f"{outer}sd"
    )


def _weights(
    expr: relax.Expr, user: relax.Var, graph: Producers
) -> tuple[relax.Var | None, list[relax.Expr]]:
    """Return the softmax behind casts and guards, and the masks whose hidden rows are guarded."""
    users, guarded = [user], list[relax.Expr]()
    while graph.only(expr, users):
        softmax = graph.call(expr, "nn.softmax")
        if softmax is not None:
            last = int(softmax.attrs.axis) in (-1, expr.ty.ndim - 1)
            return (expr if last else None), guarded
        guard, cast = graph.call(expr, "where"), graph.call(expr, "astype")
        users = [expr]
        if cast is not None:
            expr = cast.args[0]
        elif guard is not None and is_zero(guard.args[1], graph):
            condition, _, otherwise = guard.args
            tested, hidden = graph.call(condition, "isnan"), hidden_rows(condition, graph)
            known = graph.constant(condition)
            if tested is not None and tested.args[0] == otherwise:
                users.append(condition)
            elif hidden is not None:
                guarded.append(hidden)
            elif known is None or known.any():
                break
            expr = otherwise
        else:
            break
    return None, []


def _scores(softmax: relax.Var, shape: tuple[int, ...], graph: Producers) -> _Scores | None:
    """Return the first matmul that leads to ``softmax``, and what is done to its result."""
    call = graph.call(softmax, "nn.softmax")
    assert call is not None
    ways = [(_Scores(call.args[0]), softmax)]
    while ways:
        at, user = ways.pop()
        if static_shape(at.value) != shape or not graph.only(at.value, [user]):
            continue
        if graph.call(at.value, "matmul") is not None:
            return at
        for before in _before(at, graph):
            ways.append((before, at.value))
    return None


def _before(at: _Scores, graph: Producers) -> list[_Scores]:
    """Return the scores one operator earlier, in each way to read the operator."""
    cast = graph.call(at.value, "astype")
    if cast is not None:
        return [dataclasses.replace(at, value=cast.args[0])]
    factored = graph.factored(at.value)
    if factored is not None:
        value, factor = factored
        return [dataclasses.replace(at, value=value, scale=at.scale * factor)]
    if at.scale != 1.0:
        return []  # the mask would be scaled, too
    return [
        dataclasses.replace(at, value=scores, masks=(*at.masks, mask))
        for scores, mask in masked(at.value, graph)
    ]


def _in_dtype(var: relax.Var, dtype: str, graph: Producers) -> relax.Var | None:
    """Return the result in ``dtype``: ``var`` itself, or its only user if that is a cast."""
    if str(var.ty.dtype) == dtype:
        return var
    users = graph.users(var)
    if len(users) == 1 and users[0] is not None and str(users[0].ty.dtype) == dtype:
        return users[0] if graph.call(users[0], "astype") is not None else None
    return None
