"""Reductions across contiguous memory: threads along the columns, the reduction divided over more."""

from __future__ import annotations

import dataclasses
import math

from tvm import IRModule, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.schedule.analysis import BlockFacts, all_facts, block_facts

from .base import GpuTemplate
from .hint import GpuHint
from .steps import cache_reads, extent, fuse_all, inline_all, output_block, spatial_extent


@dataclasses.dataclass
class ColumnForm:
    """A function with one reduction across contiguous memory, all inlined.

    Attributes:
        sch: Its schedule.
        facts: Facts of the reduction.
        columns: The axis of the columns.
        epilogue: Name of the block that makes the result of the sums, or None.
    """

    sch: s_tir.Schedule
    facts: BlockFacts
    columns: int
    epilogue: str | None


def prepare_columns(func: tirx.PrimFunc) -> ColumnForm | None:
    """The form of ``func``; None unless it has one reduction, of columns."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_all(sch)
    blocks = all_facts(sch)
    found = [f for f in blocks if f.reduction]
    last = output_block(sch)
    if len(found) != 1 or last is None or len(blocks) > 2 or found[0].stores != 1:
        return None
    facts = found[0]
    final = block_facts(sch, last)
    if not final.reduction and final.work != spatial_extent(facts):
        return None
    if not facts.spatial or facts.reduced == 1:
        return None
    columns = facts.spatial[-1]
    if facts.axes[columns].extent == 1 or facts.write.strides[columns] != 1:
        return None
    if not any(r.strides[columns] == 1 for r in facts.reads):
        return None
    return ColumnForm(sch, facts, columns, None if final.reduction else final.name)


class GpuColumnReduction(GpuTemplate):
    """Columns to the x threads by vectors, the reduction to the y threads and to blocks."""

    name = "gpu_column_reduction"

    def apply(self, func: tirx.PrimFunc, hint: GpuHint) -> s_tir.Schedule | None:
        """Schedule ``func``, or None unless it has one reduction, of columns.

        Before -> after, with 32 x 8 threads and vectors of 8::

            for j: for i: s[j] += X[i, j]

            for b in blockIdx.x, x in threadIdx.x, y in threadIdx.y:
                for io: for v: part[v] += X[io * 8 + y, (b * 32 + x) * 8 + v]
                shared[y, x * 8 + v] = part[v]
                for y in range(8): s[...] += shared[y, ...]
        """
        form = prepare_columns(func)
        if form is None:
            return None
        sch, facts, columns, epilogue = form.sch, form.facts, form.columns, form.epilogue
        block = sch.get_sblock(facts.name)
        vector = math.gcd(hint.vector, facts.axes[columns].extent)
        loops = sch.get_loops(block)
        others = [loops[i] for i in range(len(loops)) if not facts.axes[i].reduce and i != columns]
        reduced = [loops[i] for i in facts.reduction]
        sch.reorder(*others, loops[columns], *reduced)
        reduction = fuse_all(sch, reduced)
        if hint.split_k > 1:
            part, _ = sch.split(reduction, [hint.split_k, None])
            first = sch.rfactor(part, 0)
            _in_thread_sum(sch, block, epilogue)
            block, epilogue = first, None
            loops = sch.get_loops(block)
            *others, column, part, reduction = loops
            sch.reorder(part, *others, column, reduction)
            others = [part, *others]
        else:
            column = loops[columns]
        _columns(sch, block, others, column, reduction, epilogue, hint, vector)
        return sch


def _columns(
    sch: s_tir.Schedule,
    block: SBlockRV,
    others: list[LoopRV],
    column: LoopRV,
    reduction: LoopRV,
    epilogue: str | None,
    hint: GpuHint,
    vector: int,
) -> None:
    threads = hint.thread[0] if hint.thread else 32
    pieces, lane = sch.split(column, [extent(sch, column) // vector, vector])
    grid, x = sch.split(pieces, [None, threads])
    share = hint.reduce_threads
    if share == 1:
        sch.reorder(*others, grid, x, reduction, lane)
        grid = fuse_all(sch, [*others, grid])
        sch.bind(grid, "blockIdx.x")
        sch.bind(x, "threadIdx.x")
        reduction = _unrolled(sch, reduction, hint)
        if epilogue is None:
            copy = sch.cache_write(block, 0, "local")
            sch.reverse_compute_at(copy, x, preserve_unit_loops=True)
            if vector > 1:
                sch.vectorize(sch.get_loops(copy)[-1])
        else:
            sch.set_scope(block, 0, "local")
            sch.reverse_compute_at(sch.get_sblock(epilogue), x, preserve_unit_loops=True)
        _loads(sch, block, reduction, vector)
        return
    rest, y = sch.split(reduction, [None, share])
    partial = sch.rfactor(y, 0)
    *others, grid, x, lane, rest, y = sch.get_loops(partial)
    sch.reorder(*others, grid, x, y, rest, lane)
    grid = fuse_all(sch, [*others, grid])
    sch.bind(grid, "blockIdx.x")
    sch.bind(x, "threadIdx.x")
    sch.bind(y, "threadIdx.y")
    rest = _unrolled(sch, rest, hint)
    sch.set_scope(partial, 0, "local")
    _loads(sch, partial, rest, vector)
    sch.reverse_compute_at(block, grid, preserve_unit_loops=True)
    _, y, *spatial = sch.get_loops(block)
    column = fuse_all(sch, spatial)
    if hint.option("tree"):
        x, lane = sch.split(column, [None, vector])
        sch.reorder(x, lane, y)
        sch.bind(x, "threadIdx.x")
        sch.bind(y, "threadIdx.y")
    else:
        copy = sch.cache_read(block, 0, "shared")
        sch.compute_at(copy, grid, preserve_unit_loops=True)
        _, y2, *inside = sch.get_loops(copy)
        x2, lane2 = sch.split(fuse_all(sch, inside), [None, vector])
        sch.reorder(x2, y2, lane2)
        sch.bind(x2, "threadIdx.x")
        sch.bind(y2, "threadIdx.y")
        if vector > 1:
            sch.vectorize(lane2)
        sch.reorder(column, y)
        _deal(sch, column, threads, share)
    if epilogue is None:
        return
    end = sch.get_sblock(epilogue)
    sch.reverse_compute_at(end, grid, preserve_unit_loops=True)
    _, *spatial = sch.get_loops(end)
    sch.set_scope(block, 0, "local")
    if hint.option("tree"):
        x, _ = sch.split(fuse_all(sch, spatial), [None, vector])
        sch.bind(x, "threadIdx.x")
    else:
        _deal(sch, fuse_all(sch, spatial), threads, share)


def _deal(sch: s_tir.Schedule, loop: LoopRV, threads: int, share: int) -> None:
    _, y, x = sch.split(loop, [None, share, threads])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")


def _unrolled(sch: s_tir.Schedule, loop: LoopRV, hint: GpuHint) -> LoopRV:
    unroll = hint.option("unroll", 1)
    if unroll < 2:
        return loop
    steps = extent(sch, loop)
    if steps <= unroll:
        sch.unroll(loop)
        return loop
    if steps % unroll:
        return loop
    _, inside = sch.split(loop, [None, unroll])
    sch.unroll(inside)
    return inside


def _loads(sch: s_tir.Schedule, block: SBlockRV, at: LoopRV, vector: int) -> None:
    if vector == 1:
        return
    facts = block_facts(sch, block)
    names = [i for i, a in enumerate(facts.axes) if not a.reduce and a.extent > 1]
    inner = max((i for i in names if any(r.strides[i] == 1 for r in facts.reads)), default=-1)
    if inner >= 0:
        cache_reads(sch, block, at, inner, vector)
    sch.unroll(sch.get_loops(block)[-1])


def _in_thread_sum(sch: s_tir.Schedule, block: SBlockRV, epilogue: str | None) -> None:
    """A kernel that sums the parts, a thread an element."""
    part, *spatial = _parts_first(sch, block)
    flat = fuse_all(sch, spatial)
    grid, x = sch.split(flat, [None, 128])
    sch.reorder(grid, x, part)
    sch.bind(grid, "blockIdx.x")
    sch.bind(x, "threadIdx.x")
    if epilogue is None:
        copy = sch.cache_write(block, 0, "local")
        sch.reverse_compute_at(copy, x, preserve_unit_loops=True)
    else:
        sch.set_scope(block, 0, "local")
        sch.reverse_compute_at(sch.get_sblock(epilogue), x, preserve_unit_loops=True)


def _parts_first(sch: s_tir.Schedule, block: SBlockRV) -> list[LoopRV]:
    """The loops of a sum of parts, that over the parts first."""
    facts = block_facts(sch, block)
    loops = sch.get_loops(block)
    spatial = [loop for loop, a in zip(loops, facts.axes, strict=True) if not a.reduce]
    parts = [loop for loop, a in zip(loops, facts.axes, strict=True) if a.reduce]
    return [*parts, *spatial]
