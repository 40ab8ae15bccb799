"""Reductions along contiguous memory: sums, softmax, layer norm; the threads of a warp share a row."""

from __future__ import annotations

import dataclasses
import math

from tvm import IRModule, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.schedule.analysis import all_facts, block_facts, leaf_blocks

from .base import GpuTemplate
from .hint import GpuHint
from .steps import (
    cache_reads,
    cache_result,
    extent,
    fuse_all,
    inline_all,
    output_block,
    spatial_extent,
)


@dataclasses.dataclass
class RowForm:
    """A function that reduces rows, all inlined.

    Attributes:
        sch: Its schedule.
        reductions: Names of the reductions, in order.
        last: Name of the block that writes the result; a reduction, or what follows them.
        rows: Rows.
        columns: Elements of a row.
        wide: Whether the result has an element for each of the row, not one a row.
        vector: Most elements that one load moves.
    """

    sch: s_tir.Schedule
    reductions: list[str]
    last: str
    rows: int
    columns: int
    wide: bool
    vector: int


def prepare_rows(func: tirx.PrimFunc) -> RowForm | None:
    """The form of ``func``; None unless all its reductions are over the same, contiguous rows."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_all(sch)
    blocks = all_facts(sch)
    found = [f for f in blocks if f.reduction]
    last = output_block(sch)
    if not found or last is None:
        return None
    final = block_facts(sch, last)
    if any(not f.reduction and f.name != final.name for f in blocks):
        return None
    columns, rows = found[0].reduced, spatial_extent(found[0])
    if any(f.reduced != columns or spatial_extent(f) != rows for f in found):
        return None
    if columns == 1:
        return None
    if not final.reduction and final.work not in (rows, rows * columns):
        return None
    vector = 16
    for facts in blocks:
        inner = max(i for i, a in enumerate(facts.axes))
        if facts.reduction:
            inner = facts.reduction[-1]
            if inner != len(facts.axes) - 1:
                return None
            if not any(r.strides[inner] == 1 for r in facts.reads):
                return None
        elif facts.work == rows:
            continue
        for access in (*facts.reads, facts.write):
            if access.strides[inner] == 1:
                size = int(access.buffer.dtype.itemsize)
                end = math.gcd(int(access.buffer.shape[-1]), facts.axes[inner].extent)
                vector = min(vector, math.gcd(end, 16 // size))
    wide = not final.reduction and final.work == rows * columns
    return RowForm(sch, [f.name for f in found], final.name, rows, columns, wide, max(1, vector))


class GpuRowReduction(GpuTemplate):
    """Rows to the y threads of a block, the elements of a row to the x threads."""

    name = "gpu_row_reduction"

    def apply(self, func: tirx.PrimFunc, hint: GpuHint) -> s_tir.Schedule | None:
        """Schedule ``func``, or None unless :func:`prepare_rows` takes it.

        Before -> after, for a softmax with 32 threads a row, 4 rows a block, vectors of 8::

            for i: for k: m[i] = max(m[i], X[i, k])
            for i: for k: s[i] += exp(X[i, k] - m[i])
            for i, k: Y[i, k] = exp(X[i, k] - m[i]) / s[i]

            for b in blockIdx.x, y in threadIdx.y, x in threadIdx.x:
                for ko: X_local[0:8] = X[...];  for v: m = max(m, X_local[v])
                allreduce over x;  ...
        """
        form = prepare_rows(func)
        if form is None:
            return None
        sch = form.sch
        vector = math.gcd(form.vector, hint.vector)
        last = sch.get_sblock(form.last)
        facts = block_facts(sch, last)
        loops = sch.get_loops(last)
        column: LoopRV | None = None
        if facts.reduction:
            spatial = [loops[i] for i in range(len(loops)) if not facts.axes[i].reduce]
            if not spatial:
                spatial = [sch.add_unit_loop(loops[0])]
            column = fuse_all(sch, [loops[i] for i in facts.reduction])
            row = fuse_all(sch, spatial)
        elif form.wide:
            row, column = sch.split(fuse_all(sch, loops), [form.rows, form.columns])
        else:
            row = fuse_all(sch, loops) if loops else sch.add_unit_loop(last)
        threads = hint.thread[0] if hint.thread else 1
        grid, place = sch.split(row, [None, threads])
        sch.bind(grid, "blockIdx.x")
        sch.bind(place, "threadIdx.y")
        work: list[tuple[SBlockRV, LoopRV]] = []
        for name in reversed([n for n in form.reductions if n != form.last]):
            block = sch.get_sblock(name)
            for n in range(len(sch.get(block).writes)):
                sch.set_scope(block, n, "local")
            sch.compute_at(block, place, preserve_unit_loops=True)
            count = len(block_facts(sch, block).reduction)
            inside = sch.get_loops(block)[2:]
            if math.prod(extent(sch, loop) for loop in inside[:-count]) > 1:
                return None
            work.append((block, fuse_all(sch, inside[-count:])))
        if hint.option("stage") and form.wide:
            _stage(sch, form, place, hint, vector)
        if column is not None:
            work.append((last, column))
        for block, loop in work:
            _schedule_columns(sch, block, loop, hint, vector)
        return sch


def _schedule_columns(
    sch: s_tir.Schedule, block: SBlockRV, column: LoopRV, hint: GpuHint, vector: int
) -> None:
    """Deal the elements of a row to the threads, ``vector`` at a time."""
    facts = block_facts(sch, block)
    total = extent(sch, column)
    pieces, lane = sch.split(column, [total // vector, vector])
    step, thread = sch.split(pieces, [None, hint.reduce_threads])
    sch.reorder(thread, step, lane)
    sch.bind(thread, "threadIdx.x")
    unroll = hint.option("unroll", 1)
    at = step
    if unroll > 1:
        steps = extent(sch, step)
        if steps <= unroll:
            sch.unroll(step)
        elif steps % unroll == 0:
            _, at = sch.split(step, [None, unroll])
            sch.unroll(at)
    if vector > 1:
        inner = len(facts.axes) - 1
        cache_reads(sch, block, at, inner, vector)
        if not facts.reduction:
            cache_result(sch, block, at, vector)
        sch.unroll(sch.get_loops(block)[-1])


def _stage(
    sch: s_tir.Schedule, form: RowForm, place: LoopRV, hint: GpuHint, vector: int
) -> None:
    """Copy what every block reads of a row into shared memory, once."""
    blocks = [sch.get_sblock(n) for n in dict.fromkeys([*form.reductions, form.last])]
    first = block_facts(sch, blocks[0])
    reads = [r for r in first.reads if r.strides[len(first.axes) - 1] == 1]
    if len(blocks) < 2 or not reads:
        return
    buffer = reads[0].buffer
    regions = sch.get(blocks[0]).reads
    index = next(n for n, r in enumerate(regions) if r.source.same_as(buffer))
    copy = sch.cache_read(blocks[0], index, "shared", consumer_blocks=blocks)
    sch.compute_at(copy, place, preserve_unit_loops=True)
    inside = fuse_all(sch, sch.get_loops(copy)[2:])
    pieces, lane = sch.split(inside, [extent(sch, inside) // vector, vector])
    _, thread = sch.split(pieces, [None, hint.reduce_threads])
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lane)


def is_leaf(sch: s_tir.Schedule) -> int:
    """Blocks left."""
    return len(leaf_blocks(sch))
