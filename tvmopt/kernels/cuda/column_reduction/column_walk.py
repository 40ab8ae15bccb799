"""Several reductions over an outer axis (softmax over channels, argmax): one thread a column."""

from __future__ import annotations

import dataclasses
import math

from tvm import IRModule, s_tir, tirx

from tvmopt.kernels.analysis import BlockFacts, all_facts, block_facts
from tvmopt.kernels.cuda.column_reduction.config import ColumnWalkConfig
from tvmopt.kernels.cuda.common.inlining import inline_all, output_block, spatial_extent
from tvmopt.kernels.cuda.common.loops import extent, fuse_all, init_before, split_threads, unrolled
from tvmopt.kernels.workload import Refusal


@dataclasses.dataclass
class WalkForm:
    """An inlined function whose reductions are over the same columns.

    Attributes:
        sch: Its schedule.
        reductions: Names of the reductions, in order.
        last: Facts of the output block: a reduction or the epilogue.
        columns: Axes of ``last`` that index the columns; none where there is only one column.
        count: Number of columns.
        depth: Elements of a column.
    """

    sch: s_tir.Schedule
    reductions: list[str]
    last: BlockFacts
    columns: list[int]
    count: int
    depth: int


def prepare_walk(func: tirx.PrimFunc) -> WalkForm | Refusal:
    """Return the column walk form of ``func``, whose blocks must share the columns."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_all(sch)
    blocks = all_facts(sch)
    found = [f for f in blocks if f.reduction]
    output = output_block(sch)
    if not found or output is None:
        return Refusal("it has no reduction or several outputs")
    last = block_facts(sch, output)
    count, depth = spatial_extent(found[0]), found[0].reduced
    if any(not f.reduction and f.name != last.name for f in blocks):
        return Refusal("a block between its reductions cannot be inlined")
    if any(f.reduced != depth or spatial_extent(f) != count for f in found):
        return Refusal("its reductions do not share columns")
    if last.reduction:
        columns = [i for i, a in enumerate(last.axes) if not a.reduce]
    else:
        reductions = [f.write.buffer for f in found]
        reads = [r for r in last.reads if any(r.buffer.same_as(buffer) for buffer in reductions)]
        if not reads or any(s is None for r in reads for s in r.strides):
            return Refusal("its output does not read the reductions by column")
        columns = [i for i in range(len(last.axes)) if any(r.strides[i] != 0 for r in reads)]
        rest = last.work // math.prod(last.axes[i].extent for i in columns)
        if rest not in (1, depth):
            return Refusal("its output has another shape than its reductions")
    if math.prod(last.axes[i].extent for i in columns) != count:
        return Refusal("its output has other columns than its reductions")
    return WalkForm(sch, [f.name for f in found], last, columns, count, depth)


NAME = "gpu_column_walk"


def emit(func: tirx.PrimFunc, config: ColumnWalkConfig) -> s_tir.Schedule | Refusal:
    """Schedule the reductions ``func``.

    Before -> after, for a softmax over c::

        for y: for c: m[y] = max(m[y], X[c, y]);  for c: s[y] += ...;  for c, y: Y[c, y] = ...

        for b in blockIdx.x, t in threadIdx.x:
            for c: m = max(m, X[c, b * 128 + t])
            for c: s += ...
            for c: Y[c, b * 128 + t] = ...
    """
    form = prepare_walk(func)
    if isinstance(form, Refusal):
        return form
    sch = form.sch
    last = sch.get_sblock(form.last.name)
    loops = sch.get_loops(last)
    inside = [loop for i, loop in enumerate(loops) if i not in form.columns]
    columns = [loops[i] for i in form.columns] or [sch.add_unit_loop(loops[0] if loops else last)]
    sch.reorder(*columns, *inside)
    grid, x = split_threads(sch, fuse_all(sch, columns), config.threads)
    sch.bind(grid, "blockIdx.x")
    sch.bind(x, "threadIdx.x")
    walks = [(last, inside)] if inside else []
    for name in reversed([n for n in form.reductions if n != form.last.name]):
        block = sch.get_sblock(name)
        for n in range(len(sch.get(block).writes)):
            sch.set_scope(block, n, "local")
        sch.compute_at(block, x, preserve_unit_loops=True)
        deep = len(block_facts(sch, block).reduction)
        around = sch.get_loops(block)[2:]
        if math.prod(extent(sch, loop) for loop in around[:-deep]) > 1:
            return Refusal("a thread would walk several columns")
        walks.append((block, around[-deep:]))
    reductions = []
    for block, walk in walks:
        step = fuse_all(sch, walk)
        outer = len(sch.get_loops(block)) - 1
        unrolled(sch, step, config.unroll)
        if block_facts(sch, block).reduction:
            reductions.append((block, outer))
    for block, place in reductions:
        init_before(sch, block, sch.get_loops(block)[place])
    return sch
