"""Reductions along contiguous memory: softmax, layer norm, mean, global pooling, dot products.

The reduced axis is the contiguous one, so its elements, not the outputs, fill the vector lanes:
every lane keeps a partial result, and one short loop folds the lanes at the end. That reorders
floating-point additions. All stages of a row run together, while the row is in the L1 cache.
"""

from __future__ import annotations

import math

from tvm import IRModule, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.arch.cpu import CpuArch

from .analysis import BlockFacts, block_facts, leaf_blocks
from .base import ScheduleRule
from .stage import (
    collapse_axes,
    contiguous_suffix,
    divisors,
    inline_injective,
    parallelize,
    vector_length,
    vectorizes_well,
)

# From this many elements a row on, several vectors of partial results hide the adder's latency.
_LONG_ROW = 1024


class RowReduction(ScheduleRule):
    """Parallel over rows; within a row vectorised partial results and vectorised stages."""

    name = "row_reduction"

    def apply(self, func: tirx.PrimFunc, arch: CpuArch) -> s_tir.Schedule | None:
        sch = s_tir.Schedule(IRModule({"main": func}))
        reductions = [f for f in all_facts(sch) if f.reduction]
        if not reductions or not all(reduces_rows(f, arch) for f in reductions):
            return None
        if len(sch.get_output_blocks("root")) != 1:
            return None
        inline_injective(sch)
        blocks = all_facts(sch)
        shared = _shared_leading_axes(blocks)
        work = sum(f.work for f in blocks)
        for facts in reductions:
            if facts.stores == 1:
                _split_into_lanes(sch, sch.get_sblock(facts.name), arch)
        _compute_at_rows(sch, shared, work, arch)
        return sch


def all_facts(sch: s_tir.Schedule) -> list[BlockFacts]:
    """The facts of every leaf block, in program order."""
    return [block_facts(sch, block) for block in leaf_blocks(sch)]


def reduces_rows(facts: BlockFacts, arch: CpuArch) -> bool:
    """Whether the lanes are better filled along the reduction than along the outputs."""
    if not facts.reads or not facts.reduction:
        return False
    outputs = [i for i in facts.spatial if facts.axes[i].extent > 1]
    if outputs and vectorizes_well(facts, outputs[-1]):
        return False
    tail = contiguous_suffix(facts, facts.reduction)
    steps = {read.strides[tail[-1]] for read in facts.reads} if tail else {None}
    if not steps <= {0, 1} or 1 not in steps:
        return False
    return math.prod(facts.axes[i].extent for i in tail) * 2 >= arch.lanes(_dtype(facts))


def _dtype(facts: BlockFacts) -> str:
    return str(facts.write.buffer.dtype)


def _shared_leading_axes(blocks: list[BlockFacts]) -> int:
    """How many leading data-parallel axes all blocks have in common: the rows."""
    shared = 0
    for axes in zip(*(facts.axes for facts in blocks)):
        if any(axis.reduce for axis in axes) or len({axis.extent for axis in axes}) > 1:
            break
        shared += 1
    return shared


def _split_into_lanes(sch: s_tir.Schedule, block: SBlockRV, arch: CpuArch) -> None:
    """Give every vector lane a partial result of its own (rfactor).

    Before -> after, for a row of 384 and 16 lanes::

        for i: for k: s[i] += x[i, k]

        for i: for ko in range(24): for ki in T.vectorized(16): p[ki, i] += x[i, ko * 16 + ki]
        for i: for ki in range(16): s[i] += p[ki, i]
    """
    facts = block_facts(sch, block)
    tail = contiguous_suffix(facts, facts.reduction)
    extent = math.prod(facts.axes[i].extent for i in tail)
    lanes = arch.lanes(_dtype(facts))
    length = vector_length(extent, lanes, 1)
    if length == lanes and extent >= _LONG_ROW:
        length *= divisors(extent // lanes, 4)[-1]
    if length < 4 or length == extent:
        return
    collapse_axes(sch, block, tail)
    loops = sch.get_loops(block)
    _, lane = sch.split(loops[-1], [extent // length, length])
    partial = sch.rfactor(lane, len(facts.write.buffer.shape))
    # The lane, made the first axis by rfactor, becomes the last: compute_at nests in this order.
    rank = len(sch.get(partial).iter_vars)
    sch.reorder_block_iter_var(partial, [*range(1, rank), 0])


def _compute_at_rows(sch: s_tir.Schedule, shared: int, work: int, arch: CpuArch) -> None:
    """Share the rows out over the cores and run all stages of a row together.

    Before -> after::

        for i: max_i;  for i, k: exp_ik;  for i: sum_i;  for i, k: out_ik
        for i in T.parallel(I): { max_i;  for k: exp_ik;  sum_i;  for k: out_ik }
    """
    *stages, last = leaf_blocks(sch)
    rows = sch.get_loops(last)[:shared]
    if not rows:
        inner = [(block, sch.get_loops(block)) for block in [*stages, last]]
    else:
        row = sch.fuse(*rows) if len(rows) > 1 else rows[0]
        for block in reversed(stages):
            sch.compute_at(block, row)
        inner = [(block, sch.get_loops(block)[1:]) for block in [*stages, last]]
        parallelize(sch, [row], arch, work)
    partials = [(block, loops) for block, loops in inner if _vectorize_row(sch, block, loops, arch)]
    # Last: around a reduction whose init is apart TVM proves no other loop parallel.
    for block, loops in partials:
        init = sch.decompose_reduction(block, loops[0])
        sch.vectorize(sch.get_loops(init)[-1])


def _vectorize_row(
    sch: s_tir.Schedule, block: SBlockRV, loops: list[LoopRV], arch: CpuArch
) -> bool:
    """Vectorise what ``block`` does within one row; ``loops`` are its loops inside the row.

    Returns:
        Whether the block accumulates partial results, lane by lane.
    """
    facts = block_facts(sch, block)
    if facts.reduction:
        is_partial = not facts.axes[-1].reduce and len(loops) > 1
        if is_partial:
            sch.vectorize(loops[-1])
        return is_partial
    wide = [i for i, axis in enumerate(facts.axes) if axis.extent > 1]
    tail = contiguous_suffix(facts, wide[len(wide) - len(loops) :])
    if tail and vectorizes_well(facts, tail[-1]):
        members = loops[-len(tail) :]
        inner = sch.fuse(*members) if len(members) > 1 else members[0]
        extent = int(sch.get(inner).extent)
        length = vector_length(extent, arch.lanes(_dtype(facts)))
        if length > 1:
            sch.vectorize(sch.split(inner, [extent // length, length])[1])
    return False
