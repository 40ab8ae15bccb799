"""Extract the anchor operator of a fused function: the task at operator granularity.

before -> after: the anchor (the reduction with the most work) and the producers of its operands
stay. The epilogue (bias, requantize, residual, activation) is removed, and the function returns the
accumulator::

    fused(x: uint8, w: int8, bias, residual: uint8) -> uint8      conv2d; add; round; clip; add; ...
    operator(x: uint8, w: int8)                     -> int32      conv2d

Source: the operator tasks of AutoTVM; apache/tvm pull request 10650 compares them with subgraph
tasks.
"""

from __future__ import annotations

import itertools
from typing import Any

from tvm import IRModule, s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError

from tvmopt.kernels.analysis import BlockFacts, block_facts, leaf_blocks
from tvmopt.kernels.schedulable import why_not_schedulable
from tvmopt.kernels.scheduled import FREE_ATTR

# Name prefixes of the output transform blocks that :mod:`tvmopt.transform.winograd` emits.
_WINOGRAD = ("winograd_out", "conv2d_winograd")
# Fusion pattern of a function, set by AnnotateTIROpPattern.
_PATTERN_ATTR = "op_pattern"


def anchor_block(func: tirx.PrimFunc) -> str | None:
    """Return the name of the anchor block: the reduction (sum, maximum, ...) with the most work.

    Returns None when no block reduces, or when ``func`` has no leaf-block structure.
    """
    facts = _facts(func)
    at = _anchor(facts)
    return None if at is None else facts[at].name


def operator_function(func: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return the anchor operator of ``func`` with its own output dtype; None without an anchor.

    A function that consists of the operator alone is returned without its fusion pattern, which
    fused functions do not carry. The same holds when the anchor is not a matmul or convolution
    (softmax, mean, pooling): then all blocks belong to the operator.

    Args:
        func: A TensorIR function of static shape, as FuseTIR emits it.
    """
    facts = _facts(func)
    own = _own(facts)
    if not own:
        return None
    if len(own) == len(facts):
        return func.without_attr(_PATTERN_ATTR)
    nests = list(func.body.block.body.seq)
    kept = [nests[i] for i in own]
    out = facts[own[-1]].write.buffer
    used = [buffer for i in own for buffer in _buffers(facts[i])]
    params = [p for p in func.params if _is_in(p, used) and not p.same_as(out)]
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
    if FREE_ATTR in (func.attrs or {}):
        free = [func.params[int(i)] for i in func.attrs[FREE_ATTR]]
        places = [i for i, p in enumerate(params) if _is_in(p, free)]
        operator = operator.with_attr(FREE_ATTR, places)
    return operator


def operator_blocks(func: tirx.PrimFunc) -> list[str]:
    """Return the names of the blocks of ``func`` that belong to its operator, in program order."""
    facts = _facts(func)
    return [facts[i].name for i in _own(facts)]


def why_no_operator(func: tirx.PrimFunc) -> str:
    """Return why :func:`operator_function` returns None for ``func``."""
    return why_not_schedulable(func) or "no anchor operator: nothing in it is summed up"


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


def _own(facts: list[BlockFacts]) -> list[int]:
    """Return indices of the operator's blocks: the anchor and the producers of its operands.

    Returns all blocks when the anchor is not a matmul or convolution, and none without an anchor.
    """
    at = _anchor(facts)
    if at is None:
        return []
    if len(facts[at].reads) != 2 or sum(bool(f.reduction) for f in facts) > 1:
        return list(range(len(facts)))
    last = _own_end(facts, at)
    own, needed = [last], _buffers(facts[last])
    for i in reversed(range(last)):
        if _is_in(facts[i].write.buffer, needed):
            own.insert(0, i)
            needed += _buffers(facts[i])
    return own


def _own_end(facts: list[BlockFacts], anchor: int) -> int:
    """Return the index of the operator's last block: Winograd's output transform, or the anchor."""
    after = itertools.takewhile(lambda f: f.name.startswith(_WINOGRAD), facts[anchor + 1 :])
    return anchor + len(list(after))


def _buffers(facts: BlockFacts) -> list[tirx.Buffer]:
    return [*(read.buffer for read in facts.reads), facts.write.buffer]


def _is_in(buffer: Any, buffers: list[Any]) -> bool:
    return any(buffer.same_as(other) for other in buffers)
