"""The problem that a found attention is, and the arguments of its function."""

from __future__ import annotations

import dataclasses

from tvm import relax

from tvmopt.kernels.attention import AttentionProblem, MaskedBy
from tvmopt.transform.attention.masks import FoundMask, causal, mask_shape
from tvmopt.transform.attention.match import FoundAttention
from tvmopt.transform.attention.output import AttentionOutput
from tvmopt.transform.attention.producers import Producers


@dataclasses.dataclass(frozen=True)
class AttentionCall:
    """A problem with what its function is called with.

    Attributes:
        problem: The problem.
        found: Where it was found.
        mask: The mask operand.
        output: What the result becomes.
    """

    problem: AttentionProblem
    found: FoundAttention
    mask: FoundMask | None
    output: AttentionOutput


def attention_call(
    found: FoundAttention, output: AttentionOutput, graph: Producers
) -> AttentionCall | None:
    """Return the problem that ``found`` is; None where shapes or masks have none."""
    q, k, v = found.q, found.k, found.v
    batch, heads = q.extent("b"), q.extent("h")
    if {k.extent("b"), v.extent("b")} != {batch}:
        return None
    if k.extent("h") != v.extent("h") or heads % k.extent("h"):
        return None
    for each in (k, v):
        if each.extent("h") > 1 and each.extent("h") * each.shared != heads:
            return None
    problem = AttentionProblem(
        batch=batch,
        heads=heads,
        kv_heads=k.extent("h"),
        queries=q.extent("s"),
        keys=k.extent("s"),
        head_size=q.extent("d"),
        value_size=v.extent("d"),
        dtype=q.dtype,
        scale=found.scale * q.scale * k.scale,
        q_axes=q.order,
        k_axes=k.order,
        v_axes=v.order,
        out_axes=output.axes,
    )
    return _masked(problem, found, output, graph)


def _masked(
    problem: AttentionProblem, found: FoundAttention, output: AttentionOutput, graph: Producers
) -> AttentionCall | None:
    masks, hides = [], MaskedBy.NOTHING
    for mask in found.masks:
        data = mask.constant(graph)
        kind = None if data is None else causal(data, problem.queries, problem.keys)
        if kind is None or MaskedBy.NOTHING not in (kind, hides):
            masks.append(mask)
        elif kind is not MaskedBy.NOTHING:
            hides = kind
    problem = dataclasses.replace(problem, causal=hides)
    if not masks:
        return AttentionCall(problem, found, None, output)
    shape = mask_shape(masks[0].value)
    if len(masks) > 1 or shape is None or shape[-1] != problem.keys:
        return None
    whole = (problem.batch, problem.heads, problem.queries)
    if any(e not in (1, most) for e, most in zip(shape, whole, strict=False)):
        return None
    problem = dataclasses.replace(problem, mask_shape=shape, mask_dtype=masks[0].dtype)
    return AttentionCall(problem, found, masks[0], output)


def arguments(call: AttentionCall) -> list[relax.Expr]:
    """Return Q, K, V and the mask as expressions in the axes of the problem."""
    found = [call.found.q.tensor(), call.found.k.tensor(), call.found.v.tensor()]
    if call.mask is not None and call.problem.mask_shape is not None:
        found.append(relax.op.reshape(call.mask.tensor(), call.problem.mask_shape))
    return found
