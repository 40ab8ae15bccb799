"""Reductions along contiguous memory: sums, softmax, layer norm; the threads of a warp share a row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from tvm import IRModule, ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.schedule.analysis import Access, BlockFacts, all_facts, block_facts

from .base import GpuTemplate
from .hint import GpuHint
from .steps import (
    cache_reads,
    cache_result,
    extent,
    fuse_all,
    index_map,
    inline_all,
    load_at,
    output_block,
    spatial_extent,
    split_prefix,
    split_vector,
    store_at,
    unrolled,
)


#: Values of the option ``stage``: where a row is kept after it was first read.
_SHARED, _REGISTERS = 1, 2
# Shared memory of a block that a kernel may declare itself, and what sums of warps take of it.
_SMEM_STATIC = 48 * 1024
_SMEM_OTHER = 1024
# Elements of a row that one thread keeps in registers at most.
_MOST_KEPT = 160


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
        crosses: Whether an axis of the result is divided between rows.
    """

    sch: s_tir.Schedule
    reductions: list[str]
    last: str
    rows: int
    columns: int
    wide: bool
    vector: int
    crosses: bool


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
            walked = [r for r in facts.reads if any(r.strides[i] != 0 for i in facts.reduction)]
            largest = max(walked, key=_elements, default=None)
            if largest is None or not _is_row(facts, largest):
                return None
        elif facts.work == rows:
            continue
        for access in (*facts.reads, facts.write):
            if access.strides[inner] == 1:
                size = int(access.buffer.dtype.itemsize)
                end = math.gcd(int(access.buffer.shape[-1]), facts.axes[inner].extent)
                vector = min(vector, math.gcd(end, 16 // size))
    wide = not final.reduction and final.work == rows * columns
    crosses = False
    if wide:
        before = 1
        for axis in final.axes:
            crosses = crosses or (before < rows < before * axis.extent)
            before *= axis.extent
    return RowForm(
        sch, [f.name for f in found], final.name, rows, columns, wide, max(1, vector), crosses
    )


def _elements(read: Access) -> int:
    return math.prod(int(extent) for extent in read.buffer.shape)


def _is_row(facts: BlockFacts, read: Access) -> bool:
    """Whether the reduction walks ``read`` step by step."""
    step = 1
    for i in reversed(facts.reduction):
        if facts.axes[i].extent > 1 and read.strides[i] != step:
            return False
        step *= facts.axes[i].extent
    return True


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
        others = [sch.get_sblock(n) for n in form.reductions if n != form.last]
        stage = hint.option("stage") if form.wide else 0
        staged = _stage(sch, form, hint) if stage == _SHARED else None
        kept = _keep(sch, form, hint, vector) if stage == _REGISTERS else None
        if stage == _REGISTERS and kept is None:
            return None
        loads = {
            sch.get(b).name_hint: cache_reads(sch, b, len(sch.get(b).iter_vars) - 1, vector)
            for b in [*others, *([last] if form.wide or form.last in form.reductions else [])]
        }
        result = cache_result(sch, last, vector) if form.wide and vector > 1 else None
        facts = block_facts(sch, last)
        loops = sch.get_loops(last)
        columns: list[LoopRV] = []
        if facts.reduction:
            rows = [loops[i] for i in range(len(loops)) if not facts.axes[i].reduce]
            columns = [loops[i] for i in facts.reduction]
            rows = rows or [sch.add_unit_loop(loops[0])]
            sch.reorder(*rows, *columns)
        else:
            divided = split_prefix(sch, loops, form.rows)
            if divided is None:
                return None
            rows, columns = divided
            rows = rows or [sch.add_unit_loop(columns[0] if columns else last)]
        together = hint.thread[0] if hint.thread else 1
        if together <= extent(sch, rows[-1]):
            inner, place = sch.split(rows[-1], [None, together])
            grid = fuse_all(sch, [*rows[:-1], inner])
        else:
            grid, place = sch.split(fuse_all(sch, rows), [None, together])
        sch.bind(grid, "blockIdx.x")
        sch.bind(place, "threadIdx.y")
        work = [(last, columns)] if form.wide or facts.reduction else []
        for block in reversed(others):
            for n in range(len(sch.get(block).writes)):
                sch.set_scope(block, n, "local")
            sch.compute_at(block, place, preserve_unit_loops=True)
            count = len(block_facts(sch, block).reduction)
            inside = sch.get_loops(block)[2:]
            if math.prod(extent(sch, loop) for loop in inside[:-count]) > 1:
                return None
            work.append((block, inside[-count:]))
        for block, inside in work:
            if kept is not None:
                at = _bind_parts(sch, inside)
            elif (found := _deal_columns(sch, block, inside, hint, vector, form.crosses)) is None:
                return None
            else:
                at = found
            load_at(sch, loads[sch.get(block).name_hint], at)
            if result is not None and sch.get(block).name_hint == form.last:
                store_at(sch, result, at)
        if staged is not None:
            _place_stage(sch, staged, place, hint, vector)
        if kept is not None:
            _place_kept(sch, kept, place)
        return sch


def _deal_columns(
    sch: s_tir.Schedule,
    block: SBlockRV,
    loops: list[LoopRV],
    hint: GpuHint,
    vector: int,
    crosses: bool,
) -> LoopRV | None:
    """Deal the elements of a row to the threads, ``vector`` at a time.

    Where a row is part of an axis, threads past its end would be in the next row, and TVM guards
    the ends of buffers, not of rows: the loop over that part stays whole.

    Returns:
        The loop around a vector; None where threads would be past the end.
    """
    around = loops[:1] if crosses and len(loops) > 1 else []
    pieces, lane = split_vector(sch, loops[len(around) :], vector)
    if crosses and not around and extent(sch, pieces) % hint.reduce_threads:
        return None
    step, thread = sch.split(pieces, [None, hint.reduce_threads])
    sch.reorder(thread, *around, step, lane)
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.unroll(lane)
    return unrolled(sch, step, hint.option("unroll", 1))


def _bind_parts(sch: s_tir.Schedule, loops: list[LoopRV]) -> LoopRV:
    """Bind the loops of columns that :func:`_keep` has numbered; the loop around a vector."""
    step, thread, lane = loops[-3:]
    sch.reorder(thread, step)
    sch.bind(thread, "threadIdx.x")
    sch.unroll(lane)
    sch.unroll(step)
    return step


def _stage(sch: s_tir.Schedule, form: RowForm, hint: GpuHint) -> SBlockRV | None:
    """Have all blocks read from shared memory what the first of them reads along the rows.

    Returns:
        The block that fills it; None where there is nothing to gain, or too little of it.
    """
    blocks = [sch.get_sblock(n) for n in dict.fromkeys([*form.reductions, form.last])]
    first = block_facts(sch, blocks[0])
    reads = [r for r in first.reads if r.strides[len(first.axes) - 1] == 1]
    if len(blocks) < 2 or not reads:
        return None
    buffer = reads[0].buffer
    users = [b for b in blocks if any(r.source.same_as(buffer) for r in sch.get(b).reads)]
    size = math.prod(hint.thread) * form.columns * int(buffer.dtype.itemsize)
    if size > hint.arch.smem_bytes - _SMEM_OTHER:
        return None
    scope = "shared" if size <= _SMEM_STATIC - _SMEM_OTHER else "shared.dyn"
    regions = sch.get(blocks[0]).reads
    index = next(n for n, r in enumerate(regions) if r.source.same_as(buffer))
    return sch.cache_read(blocks[0], index, scope, consumer_blocks=users)


def _place_stage(
    sch: s_tir.Schedule, copy: SBlockRV, place: LoopRV, hint: GpuHint, vector: int
) -> None:
    """Copy a row into shared memory before it is used."""
    sch.compute_at(copy, place, preserve_unit_loops=True)
    pieces, lane = split_vector(sch, sch.get_loops(copy)[2:], vector)
    step, thread = sch.split(pieces, [None, hint.reduce_threads])
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lane)
    unrolled(sch, step, hint.option("unroll", 1))


def _keep(
    sch: s_tir.Schedule, form: RowForm, hint: GpuHint, vector: int
) -> SBlockRV | None:
    """Have every thread keep its part of what the blocks read along the rows in registers.

    The columns of all blocks are numbered by step, thread and place in a vector, so that TVM sees
    which part is whose.

    Returns:
        The block that loads it; None where there is nothing to gain, a row is of several axes, or
        does not divide.
    """
    blocks = [sch.get_sblock(n) for n in dict.fromkeys([*form.reductions, form.last])]
    share = hint.reduce_threads
    facts = [block_facts(sch, block) for block in blocks]
    if len(blocks) < 2 or any(f.axes[-1].extent != form.columns for f in facts):
        return None
    if form.columns % (share * vector) or form.columns // share > _MOST_KEPT:
        return None
    reads = [r for r in facts[0].reads if r.strides[-1] == 1]
    if not reads or int(reads[0].buffer.shape[-1]) != form.columns:
        return None
    buffer = reads[0].buffer
    users = [b for b in blocks if any(r.source.same_as(buffer) for r in sch.get(b).reads)]
    regions = sch.get(blocks[0]).reads
    index = next(n for n, r in enumerate(regions) if r.source.same_as(buffer))
    copy = sch.cache_read(blocks[0], index, "local", consumer_blocks=users)

    # Two steps: TVM does not simplify what one would leave.
    for place, size in ((-1, vector), (-2, share)):
        how = index_map(sch, copy, _divided(place, size))
        for block in (copy, *blocks):
            sch.transform_block_layout(block, index_map(sch, block, _divided(place, size)))
        sch.transform_layout(copy, ("write", 0), how)
    return copy


def _place_kept(sch: s_tir.Schedule, copy: SBlockRV, place: LoopRV) -> None:
    """Load a thread's part of a row before it is used."""
    sch.compute_at(copy, place, preserve_unit_loops=True)
    step, thread, lane = sch.get_loops(copy)[-3:]
    sch.reorder(thread, step)
    sch.bind(thread, "threadIdx.x")
    if extent(sch, lane) > 1:
        sch.vectorize(lane)
    sch.unroll(step)


def _divided(place: int, size: int) -> Callable[..., list[ir.Expr]]:
    """Axes with that at ``place`` from the end divided into pieces of ``size``."""

    def divide(*axes: tirx.Var) -> list[ir.Expr]:
        n = len(axes) + place
        return [*axes[:n], axes[n] // size, axes[n] % size, *axes[n + 1 :]]

    return divide
