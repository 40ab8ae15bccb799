"""Column reduction: neighbouring threads on neighbouring columns, several threads a column."""

from __future__ import annotations

import dataclasses
import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.analysis import BlockFacts, block_facts
from tvmopt.kernels.cuda.column_reduction.config import CudaColumnReductionConfig
from tvmopt.kernels.cuda.common.inlining import one_reduction
from tvmopt.kernels.cuda.common.loops import extent, fuse_all, init_before, unrolled, with_epilogue
from tvmopt.kernels.cuda.common.vectors import cache_reads, lanes_of, load_at
from tvmopt.kernels.workload import Refusal


@dataclasses.dataclass
class ColumnForm:
    """An inlined function with one reduction across contiguous memory.

    Attributes:
        sch: Its schedule.
        facts: Facts of the reduction.
        columns: Index of the column axis.
    """

    sch: s_tir.Schedule
    facts: BlockFacts
    columns: int


def prepare_columns(func: tirx.PrimFunc) -> ColumnForm | Refusal:
    """Return the column reduction form of ``func``."""
    found = one_reduction(func)
    if isinstance(found, Refusal):
        return found
    sch, facts = found
    if not facts.spatial or facts.reduced == 1:
        return Refusal("it has one output element, or reduces over one element")
    columns = facts.spatial[-1]
    if facts.axes[columns].extent == 1 or facts.write.strides[columns] != 1:
        return Refusal("its output has no contiguous columns")
    if not any(r.strides[columns] == 1 for r in facts.reads):
        return Refusal("its columns are not contiguous in an input")
    return ColumnForm(sch, facts, columns)


NAME = "gpu_column_reduction"


def emit(func: tirx.PrimFunc, config: CudaColumnReductionConfig) -> s_tir.Schedule | Refusal:
    """Schedule the column reduction ``func``.

    Before -> after, with 32 x 8 threads and vectors of 8::

        for j: for i: s[j] += X[i, j]

        for b in blockIdx.x, x in threadIdx.x, y in threadIdx.y:
            for io: for v: part[v] += X[io * 8 + y, (b * 32 + x) * 8 + v]
            shared[y, x * 8 + v] = part[v]
            for y in range(8): s[...] += shared[y, ...]
    """
    form = prepare_columns(func)
    if isinstance(form, Refusal):
        return form
    sch, facts, columns = form.sch, form.facts, form.columns
    block = sch.get_sblock(facts.name)
    if facts.reduced < config.split_k * config.reduce_threads:
        # Threads without elements would write past the buffer of the others.
        return Refusal("a column has fewer elements than threads")
    vector = math.gcd(config.vector_elements, facts.axes[columns].extent)
    loops = sch.get_loops(block)
    others = [loops[i] for i in range(len(loops)) if not facts.axes[i].reduce and i != columns]
    reduced = [loops[i] for i in facts.reduction]
    sch.reorder(*others, loops[columns], *reduced)
    reduction = fuse_all(sch, reduced)
    if config.split_k > 1:
        part, _ = sch.split(reduction, [config.split_k, None])
        first = sch.rfactor(part, 0)
        _in_thread_sum(sch, block)
        block = first
        loops = sch.get_loops(block)
        *others, column, part, reduction = loops
        sch.reorder(part, *others, column, reduction)
        others = [part, *others]
    else:
        column = loops[columns]
    _columns(sch, block, others, column, reduction, config, vector)
    return sch


def _columns(
    sch: s_tir.Schedule,
    block: SBlockRV,
    others: list[LoopRV],
    column: LoopRV,
    reduction: LoopRV,
    config: CudaColumnReductionConfig,
    vector: int,
) -> None:
    """Schedule a column reduction, or its slices with split-K."""
    # With split-K the epilogue is in the reduction kernel.
    whole = config.split_k == 1
    end = with_epilogue(sch, block) if whole else sch.cache_write(block, 0, "local")
    threads, share = config.threads, config.reduce_threads
    pieces, lane = sch.split(column, [extent(sch, column) // vector, vector])
    grid, x = sch.split(pieces, [None, threads])
    if share == 1:
        _alone(sch, block, end, [*others, grid], (x, reduction, lane), config.unroll)
        return
    _, y = sch.split(reduction, [None, share])
    partial = sch.rfactor(y, 0)
    copies = _loads(sch, partial, vector)
    tile = None if config.tree else sch.cache_read(block, 0, "shared")
    *others, grid, x, lane, rest, y = sch.get_loops(partial)
    sch.reorder(*others, grid, x, y, rest, lane)
    grid = fuse_all(sch, [*others, grid])
    sch.bind(grid, "blockIdx.x")
    sch.bind(x, "threadIdx.x")
    sch.bind(y, "threadIdx.y")
    sch.set_scope(partial, 0, "local")
    load_at(sch, copies, unrolled(sch, rest, config.unroll))
    sch.unroll(lane)
    if tile is not None:
        _share(sch, tile, grid, vector, threads)
    # Both before their loops are split: TVM would not recognise the bounds check of a split.
    sch.reverse_compute_at(block, grid, preserve_unit_loops=True)
    sch.reverse_compute_at(end, grid, preserve_unit_loops=True)
    for stage in (block, end):
        inside = sch.get_loops(stage)[1:]
        summed = inside[:1] if stage is block else []
        column = fuse_all(sch, inside[len(summed) :])
        if tile is not None:
            _, y, x = sch.split(column, [None, share, threads])
            sch.reorder(y, x, *summed)
            sch.bind(y, "threadIdx.y")
        else:
            x, lane = _columns_of(sch, column, vector, threads)
            sch.reorder(x, lane, *summed)
            for loop in summed:
                sch.bind(loop, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
    # Last: around a reduction with a decomposed init, TVM proves no other block complete.
    init_before(sch, partial, sch.get_loops(partial)[3])
    if tile is not None:
        init_before(sch, block, sch.get_loops(block)[-1])


def _alone(
    sch: s_tir.Schedule,
    block: SBlockRV,
    end: SBlockRV,
    outer: list[LoopRV],
    loops: tuple[LoopRV, LoopRV, LoopRV],
    unroll: int,
) -> None:
    """Schedule the case in which each thread reduces its columns alone."""
    x, reduction, lane = loops
    vector = extent(sch, lane)
    copies = _loads(sch, block, vector)
    sch.reorder(*outer, x, reduction, lane)
    sch.bind(fuse_all(sch, outer), "blockIdx.x")
    sch.bind(x, "threadIdx.x")
    sch.reverse_compute_at(end, x, preserve_unit_loops=True)
    load_at(sch, copies, unrolled(sch, reduction, unroll))
    if vector > 1:
        sch.unroll(lane)
    init_before(sch, block, sch.get_loops(block)[2])


def _columns_of(
    sch: s_tir.Schedule, column: LoopRV, vector: int, threads: int
) -> tuple[LoopRV, LoopRV]:
    """Split columns into loops over all threads and over the lanes of one thread.

    The loop covers all threads, even those without columns: threads outside a shorter loop would
    execute it too.
    """
    pieces, lane = sch.split(column, [extent(sch, column) // vector, vector])
    _, x = sch.split(pieces, [None, threads])
    return x, lane


def _share(sch: s_tir.Schedule, tile: SBlockRV, grid: LoopRV, vector: int, threads: int) -> None:
    """Store the threads' partial sums to shared memory."""
    sch.reverse_compute_at(tile, grid, preserve_unit_loops=True)
    _, y, *inside = sch.get_loops(tile)
    x, lane = _columns_of(sch, fuse_all(sch, inside), vector, threads)
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    if 1 < vector <= lanes_of(sch, tile):
        sch.vectorize(lane)


def _loads(sch: s_tir.Schedule, block: SBlockRV, vector: int) -> list[SBlockRV]:
    facts = block_facts(sch, block)
    spatial = [i for i, a in enumerate(facts.axes) if not a.reduce and a.extent > 1]
    inner = [i for i in spatial if any(r.strides[i] == 1 for r in facts.reads)]
    return cache_reads(sch, block, inner[-1], vector) if inner else []


def _in_thread_sum(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Schedule the split-K reduction kernel, one thread an output element."""
    end = with_epilogue(sch, block)
    *spatial, part = sch.get_loops(block)
    grid, x = sch.split(fuse_all(sch, spatial), [None, 128])
    sch.bind(grid, "blockIdx.x")
    sch.bind(x, "threadIdx.x")
    sch.reverse_compute_at(end, x, preserve_unit_loops=True)
    unrolled(sch, part, 8)
    init_before(sch, block, sch.get_loops(block)[2])
