"""Keep a row between the passes that read it: in shared memory or in registers."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.analysis import block_facts
from tvmopt.kernels.cuda.common.loops import extent, index_map, split_vector, unrolled
from tvmopt.kernels.cuda.common.register_promotion import mark_thread_local
from tvmopt.kernels.cuda.row_reduction.config import CudaRowReductionConfig
from tvmopt.kernels.cuda.row_reduction.form import RowForm
from tvmopt.kernels.workload import Refusal

# Most static shared memory of a block; shared memory of the cross-warp reductions.
_SMEM_STATIC = 48 * 1024
_SMEM_OTHER = 1024
# Most elements of a row that one thread keeps in registers.
_MOST_CACHED = 160


def bind_divided(sch: s_tir.Schedule, loops: list[LoopRV]) -> LoopRV:
    """Bind the loops that :func:`cache_in_registers` split; return the loop around a vector."""
    step, thread, *lane = loops
    single = extent(sch, step) == 1  # TVM makes a unit step a spatial axis: it stays outside
    if not single:
        sch.reorder(thread, step)
    sch.bind(thread, "threadIdx.x")
    for loop in (*lane, step):
        sch.unroll(loop)
    return thread if single else step


def cache_in_shared(
    sch: s_tir.Schedule, form: RowForm, config: CudaRowReductionConfig
) -> SBlockRV | None:
    """Cache in shared memory the row that all passes read.

    Returns:
        The block that fills the cache; None where nothing is gained, or the rows do not fit.
    """
    blocks = [sch.get_sblock(n) for n in dict.fromkeys([*form.reductions, form.last])]
    first = block_facts(sch, blocks[0])
    reads = [r for r in first.reads if r.strides[len(first.axes) - 1] == 1]
    if len(blocks) < 2 or not reads:
        return None
    buffer = reads[0].buffer
    users = [b for b in blocks if any(r.source.same_as(buffer) for r in sch.get(b).reads)]
    size = config.threads * form.columns * int(buffer.dtype.itemsize)
    if size > config.arch.smem_bytes - _SMEM_OTHER:
        return None
    scope = "shared" if size <= _SMEM_STATIC - _SMEM_OTHER else "shared.dyn"
    regions = sch.get(blocks[0]).reads
    index = next(n for n, r in enumerate(regions) if r.source.same_as(buffer))
    return sch.cache_read(blocks[0], index, scope, consumer_blocks=users)


def load_shared(
    sch: s_tir.Schedule, copy: SBlockRV, grid: LoopRV, config: CudaRowReductionConfig, vector: int
) -> None:
    """Load a block's rows into shared memory before use, with all its threads."""
    sch.compute_at(copy, grid, preserve_unit_loops=True)
    pieces, lane = split_vector(sch, sch.get_loops(copy)[1:], vector)
    step, place, thread = sch.split(pieces, [None, config.threads, config.reduce_threads])
    sch.bind(place, "threadIdx.y")
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lane)
    unrolled(sch, step, config.unroll)


def cache_in_registers(
    sch: s_tir.Schedule, form: RowForm, config: CudaRowReductionConfig, vector: int
) -> SBlockRV | Refusal:
    """Keep each thread's part of a row in registers for all passes.

    Columns are split by step, thread and vector lane in all blocks, so that TVM sees which thread
    owns what. If single columns do not divide, only the register buffer is split. It then has
    zero-padded elements past the end, which no thread reads (:func:`is_ragged`).

    Returns:
        The block that loads.
    """
    blocks = [sch.get_sblock(n) for n in dict.fromkeys([*form.reductions, form.last])]
    share = config.reduce_threads
    facts = [block_facts(sch, block) for block in blocks]
    if len(blocks) < 2:
        return Refusal("one pass reads its rows only once")
    if any(f.axes[-1].extent != form.columns for f in facts):
        return Refusal("a row has several axes")
    ragged = is_ragged(form, config, vector)
    if form.columns % (share * vector) and not ragged:
        return Refusal("threads times vectors do not divide a row")
    if form.columns // share > _MOST_CACHED:
        return Refusal(f"a thread has registers for {_MOST_CACHED} elements of a row")
    reads = [r for r in facts[0].reads if r.strides[-1] == 1]
    if not reads or int(reads[0].buffer.shape[-1]) != form.columns:
        return Refusal("its first pass does not read whole rows")
    buffer = reads[0].buffer
    users = [b for b in blocks if any(r.source.same_as(buffer) for r in sch.get(b).reads)]
    regions = sch.get(blocks[0]).reads
    index = next(n for n, r in enumerate(regions) if r.source.same_as(buffer))
    copy = sch.cache_read(blocks[0], index, "local", consumer_blocks=users)

    if ragged:
        if share == 1:
            return Refusal("threads that share a row are needed where vectors do not divide it")
        pad = tirx.const(0, str(buffer.dtype))
        how = index_map(sch, copy, _divided(-1, share))
        sch.transform_layout(copy, ("write", 0), how, pad_value=pad)
        mark_thread_local(sch, copy)
        return copy

    # Two maps: TVM does not simplify the indices that a single one leaves.
    places = ((-1, vector), (-2, share)) if vector > 1 else ((-1, share),)
    for place, size in places:
        how = index_map(sch, copy, _divided(place, size))
        for block in (copy, *blocks):
            sch.transform_block_layout(block, index_map(sch, block, _divided(place, size)))
        sch.transform_layout(copy, ("write", 0), how)
    return copy


def is_ragged(form: RowForm, config: CudaRowReductionConfig, vector: int) -> bool:
    """Whether single columns are bound to threads and the last round is incomplete."""
    return vector == 1 and form.columns % config.reduce_threads != 0


def load_registers(sch: s_tir.Schedule, copy: SBlockRV, place: LoopRV) -> None:
    """Load a thread's part of a row before use."""
    sch.compute_at(copy, place, preserve_unit_loops=True)
    rank = len(sch.get(copy).iter_vars)
    step, thread, *lane = sch.get_loops(copy)[-rank:][len(sch.get(copy).reads[0].region) - 1 :]
    sch.reorder(thread, step)
    sch.bind(thread, "threadIdx.x")
    for loop in lane:
        sch.vectorize(loop)
    sch.unroll(step)


def _divided(place: int, size: int) -> Callable[..., list[ir.Expr]]:
    """Return a map that splits the axis ``place`` (negative, from the end) by ``size``."""

    def divide(*axes: tirx.Var) -> list[ir.Expr]:
        n = len(axes) + place
        return [*axes[:n], axes[n] // size, axes[n] % size, *axes[n + 1 :]]

    return divide
