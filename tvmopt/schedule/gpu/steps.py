"""Steps that several GPU templates share: inline, move data by vectors, deal loops to threads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.schedule.analysis import (
    Access,
    BlockFacts,
    all_facts,
    block_facts,
    leaf_blocks,
    substitute,
)

# Expressions in a block from which on nothing that is read twice is inlined into it.
_MAX_INLINED_SIZE = 300


def inline_all(sch: s_tir.Schedule) -> None:
    """Inline every block without reduction that is no output into its consumers.

    What is read several times is computed several times: registers and arithmetic cost less than
    memory here. A block stays where TVM refuses, or where the expression would grow without bound.
    """
    outputs = {sch.get(b).name_hint for b in sch.get_output_blocks("root")}
    for block in leaf_blocks(sch):
        if sch.get(block).name_hint in outputs:
            continue
        facts = block_facts(sch, block)
        consumers = [block_facts(sch, c) for c in sch.get_consumers(block)]
        if facts.reduction or not consumers:
            continue
        uses = sum(r.buffer.same_as(facts.write.buffer) for c in consumers for r in c.reads)
        if uses > 1 and max(c.size for c in consumers) + uses * facts.size > _MAX_INLINED_SIZE:
            continue
        try:
            sch.compute_inline(block)
        except ScheduleError:
            continue


def output_block(sch: s_tir.Schedule) -> SBlockRV | None:
    """The block that writes the only result; None when there are several."""
    blocks = sch.get_output_blocks("root")
    return blocks[0] if len(blocks) == 1 else None


def extent(sch: s_tir.Schedule, loop: LoopRV) -> int:
    """Steps of ``loop``."""
    return int(sch.get(loop).extent)


def fuse_all(sch: s_tir.Schedule, loops: Sequence[LoopRV]) -> LoopRV:
    """One loop of several adjacent ones."""
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def power_of_two(number: int) -> int:
    """The largest power of two that divides ``number``."""
    return number & -number


def widest(facts: BlockFacts) -> int:
    """Bytes of the widest element that the block reads or writes."""
    buffers = [facts.write.buffer, *(r.buffer for r in facts.reads)]
    return max(int(b.dtype.itemsize) for b in buffers)


def moves_by_vectors(facts: BlockFacts, access: Access, inner: int, vector: int) -> bool:
    """Whether ``vector`` steps of axis ``inner`` are one aligned piece of a buffer's last axis."""
    if vector == 1 or access.strides[inner] != 1 or not len(access.buffer.shape):
        return False
    if int(access.buffer.shape[-1]) % vector or facts.axes[inner].extent % vector:
        return False
    for i, (axis, stride) in enumerate(zip(facts.axes, access.strides, strict=True)):
        if i != inner and axis.extent > 1 and (stride is None or stride % vector):
            return False
    start = substitute(access.offset, {a.var: tirx.IntImm(a.var.ty.dtype, 0) for a in facts.axes})
    from tvm import sym

    start = sym.Analyzer().simplify(start)
    return isinstance(start, tirx.IntImm) and int(start) % vector == 0


def _split_last(rank: int, vector: int) -> tirx.IndexMap:
    def split(*indices: tirx.Var) -> list[ir.Expr]:
        return [*indices[:-1], indices[-1] // vector, indices[-1] % vector]

    return tirx.IndexMap.from_func(split, ndim=rank)


def cache_reads(
    sch: s_tir.Schedule, block: SBlockRV, loop: LoopRV, inner: int, vector: int
) -> list[str]:
    """Load what ``block`` reads in pieces of ``vector`` elements into registers, within ``loop``.

    Args:
        sch: The schedule.
        block: A block whose loops within ``loop`` walk ``vector`` steps of its axis ``inner``.
        loop: Where the loads go.
        inner: Index of the axis.
        vector: Elements of a load.

    Returns:
        Names of the buffers now in registers.
    """
    facts = block_facts(sch, block)
    if any(facts.conditional):
        return []
    wanted: list[Access] = []
    for read in facts.reads:
        if read.buffer.scope() == "local" or not moves_by_vectors(facts, read, inner, vector):
            continue
        same = [other for other in facts.reads if other.buffer.same_as(read.buffer)]
        if any(other.strides != read.strides for other in same):
            continue
        if any(not _equal(other.offset, read.offset) for other in same):
            continue
        if not any(read.buffer.same_as(other.buffer) for other in wanted):
            wanted.append(read)
    names = []
    for read in wanted:
        regions = sch.get(block).reads
        index = next(n for n, r in enumerate(regions) if r.source.same_as(read.buffer))
        copy = sch.cache_read(block, index, "local")
        _load_by_vectors(sch, copy, loop, vector)
        names.append(str(read.buffer.name))
    return names


def _equal(a: ir.Expr, b: ir.Expr) -> bool:
    return bool(tvm_ffi.structural_equal(a, b))


def _load_by_vectors(sch: s_tir.Schedule, copy: SBlockRV, loop: LoopRV, vector: int) -> None:
    rank = len(sch.get(copy).iter_vars)
    index_map = _split_last(rank, vector)
    sch.transform_block_layout(copy, index_map)
    sch.transform_layout(copy, ("write", 0), index_map)
    sch.compute_at(copy, loop, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(copy)[-1])


def cache_result(sch: s_tir.Schedule, block: SBlockRV, loop: LoopRV, vector: int) -> SBlockRV:
    """Collect what ``block`` writes within ``loop`` in registers and store it by vectors.

    Returns:
        The block that stores.
    """
    copy = sch.cache_write(block, 0, "local")
    rank = len(sch.get(copy).iter_vars)
    index_map = _split_last(rank, vector)
    sch.transform_block_layout(copy, index_map)
    sch.transform_layout(block, ("write", 0), index_map)
    sch.reverse_compute_at(copy, loop, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(copy)[-1])
    return copy


def single_kernel(sch: s_tir.Schedule) -> bool:
    """Whether all that is left to run is one nest."""
    return len(leaf_blocks(sch)) == 1


def reductions(sch: s_tir.Schedule) -> list[str]:
    """Names of the reduction blocks, in order."""
    return [facts.name for facts in all_facts(sch) if facts.reduction]


def spatial_extent(facts: BlockFacts) -> int:
    """Elements of the result."""
    return math.prod(a.extent for a in facts.axes if not a.reduce)
