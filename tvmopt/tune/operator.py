"""The anchor operator of a fused function, alone: what tuning at operator granularity measures.

before -> after: the sum that does most of the work, and what makes its operands, stay; what
finishes its elements (bias, requantisation, residual, activation) is cut off, and the sum itself is
what is written::

    fused(x: uint8, w: int8, bias, residual: uint8) -> uint8      conv2d; add; round; clip; add; ...
    operator(x: uint8, w: int8)                     -> int32      conv2d

Source: the operator tasks of AutoTVM, against which apache/tvm pull request 10650 sets subgraphs.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError

from tvmopt.schedule.analysis import BlockFacts, block_facts, leaf_blocks, why_not_schedulable

FREE_ATTR = "layout_free_buffers"
# Names of the blocks that :mod:`tvmopt.transform.winograd` puts behind its products.
_WINOGRAD = ("winograd_out", "conv2d_winograd")


def anchor_block(func: tirx.PrimFunc) -> str | None:
    """Name of the block that is the anchor: the sum, maximum, ... of most steps.

    None where no block reduces anything, and where ``func`` is not made of leaf blocks.
    """
    facts = _facts(func)
    at = _anchor(facts)
    return None if at is None else facts[at].name


def operator_function(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """The anchor operator of ``func`` with its own output type; None without an anchor.

    A function that is nothing but its operator comes back as it is. So does one whose anchor is no
    sum of products (softmax, mean, pooling): there the blocks around it are its own.

    Args:
        func: A TensorIR function of static shape, as FuseTIR leaves it.
    """
    facts = _facts(func)
    at = _anchor(facts)
    if at is None:
        return None
    last = _own_end(facts, at)
    nests = _nests(func)
    product = len(facts[at].reads) == 2 and sum(bool(f.reduction) for f in facts) == 1
    if not product or last == len(facts) - 1 or len(nests) != len(facts):
        return func
    kept = nests[: last + 1]
    out = facts[last].write.buffer
    used = _buffers(kept)
    params = [p for p in func.params if _is_in(p, used)]
    root = func.body.block
    allocated = [b for b in root.alloc_buffers if _is_in(b, used) and not b.same_as(out)]
    block = s_tir.SBlock(
        root.iter_vars, [], [], root.name_hint,
        tirx.SeqStmt(kept) if len(kept) > 1 else kept[0],
        root.init, allocated, root.match_buffers, root.annotations,
    )  # fmt: skip
    operator = tirx.PrimFunc(
        [*params, out], s_tir.SBlockRealize(func.body.iter_values, func.body.predicate, block)
    )
    for key, value in (func.attrs or {}).items():
        operator = operator.with_attr(key, value)
    free = [func.params[int(i)] for i in (func.attrs or {}).get(FREE_ATTR) or []]
    places = [i for i, p in enumerate(params) if _is_in(p, free)]
    if places:
        return operator.with_attr(FREE_ATTR, places)
    return operator.without_attr(FREE_ATTR) if free else operator


def _facts(func: tirx.PrimFunc) -> list[BlockFacts]:
    if why_not_schedulable(func) is not None:
        return []
    try:
        sch = s_tir.Schedule(IRModule({"main": func}))
        return [block_facts(sch, block) for block in leaf_blocks(sch)]
    except (ScheduleError, InternalError):
        return []


def _anchor(facts: list[BlockFacts]) -> int | None:
    sums = [i for i, f in enumerate(facts) if f.reduction and f.reduced > 1]
    return max(sums, key=lambda i: (facts[i].work, i), default=None)


def _own_end(facts: list[BlockFacts], anchor: int) -> int:
    """Index of the last block that is the operator's own.

    Winograd's transform back, and the cast of an operator that sums in a wider type than its own.
    """
    last = anchor
    for i in range(anchor + 1, len(facts)):
        if not facts[i].name.startswith(_WINOGRAD):
            break
        last = i
    return last if last > anchor else _own_cast(facts, anchor)


def _own_cast(facts: list[BlockFacts], anchor: int) -> int:
    after = anchor + 1
    if after == len(facts) or facts[after].reduction:
        return anchor
    result, step = facts[anchor].write.buffer, facts[after]
    if len(step.reads) != 1 or not step.reads[0].buffer.same_as(result) or step.calls:
        return anchor
    narrower = step.write.buffer.dtype.itemsize < result.dtype.itemsize
    same = step.reads[0].strides == step.write.strides
    floats = "float" in str(result.dtype) and "float" in str(step.write.buffer.dtype)
    return after if narrower and same and floats and step.size <= 2 + len(step.axes) else anchor


def _nests(func: tirx.PrimFunc) -> list[Any]:
    body = func.body.block.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _buffers(nests: list[Any]) -> list[tirx.Buffer]:
    found: list[tirx.Buffer] = []
    for nest in nests:
        tvm_ffi.structural_walk(
            nest,
            [
                (tvm.ir.TensorLoad, lambda load: found.append(load.source)),
                (tirx.BufferStore, lambda store: found.append(store.buffer)),
            ],
        )
    return found


def _is_in(buffer: Any, buffers: list[Any]) -> bool:
    return any(buffer.same_as(other) for other in buffers)
