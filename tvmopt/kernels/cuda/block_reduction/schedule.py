"""Few long reductions over any axes: one or several thread blocks for each output element.

For reductions that the row and column templates reject, or would give to too few threads: over
non-adjacent axes, several in sequence over few columns, over a whole tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import IRModule, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.analysis import Access, BlockFacts, all_facts, block_facts, leaf_blocks
from tvmopt.kernels.cuda.block_reduction.config import BlockReductionConfig
from tvmopt.kernels.cuda.common.inlining import inline_all, spatial_extent
from tvmopt.kernels.cuda.common.loops import fuse_all, index_map, split_threads, unrolled
from tvmopt.kernels.cuda.common.vectors import widest
from tvmopt.kernels.cuda.elementwise.schedule import schedule_elementwise
from tvmopt.kernels.workload import Refusal

# Elements from which on the elementwise epilogue is vectorised; bytes of a vector.
_LARGE, _VECTOR = 2**16, 16
_THREADS = 256


NAME = "gpu_block_reduction"


def emit(func: tirx.PrimFunc, config: BlockReductionConfig) -> s_tir.Schedule | Refusal:
    """Schedule the reductions ``func``, each as a kernel, or two with split-K.

    Before -> after, with 256 threads a reduction and split-K of 4::

        for c: for n, h, w: s[c] += X[n, c, h, w]

        for b in blockIdx.x, t in threadIdx.x:
            for step: part[b % 4, b // 4] += X[...(step * 4 + b % 4) * 256 + t...]
            allreduce over t
        for c in blockIdx.x, t in threadIdx.x: s[c] += part[t, c];  allreduce over t
    """
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_all(sch)
    blocks = all_facts(sch)
    lengths = [f.reduced for f in blocks if f.reduced > 1]
    if not lengths:
        return Refusal("it has no reduction")
    if config.split_k > 1 and min(lengths) < config.split_k * config.reduce_threads:
        return Refusal("a reduction has fewer elements than threads")
    scheduled: set[str] = set()
    for facts in blocks:
        if facts.name in scheduled:
            continue
        block = sch.get_sblock(facts.name)
        if facts.reduced > 1:
            scheduled |= _reduce(sch, block, config)
        elif facts.reduction:
            return Refusal("a reduction over one element is another family's")
        else:
            vector = _VECTOR // widest(facts) if facts.work >= _LARGE else 1
            schedule_elementwise(sch, block, _THREADS, vector)
    return sch


def along_reduction(facts: BlockFacts) -> bool:
    """Whether contiguous elements belong to one reduction rather than to several."""
    read = _main_read(facts)
    steps = [
        (abs(step), not axis.reduce)
        for axis, step in zip(facts.axes, read.strides, strict=True)
        if axis.extent > 1 and step
    ]
    return not min(steps)[1] if steps else True


def contiguous_elements(facts: BlockFacts) -> int:
    """Return the length of contiguous runs within one reduction, in elements."""
    read, run = _main_read(facts), 1
    for i in sorted(facts.reduction, key=lambda i: _step_size(read.strides[i])):
        if facts.axes[i].extent > 1 and read.strides[i] == run:
            run *= facts.axes[i].extent
    return run


def _main_read(facts: BlockFacts) -> Access:
    """Return the largest read that the reduction axes index."""
    reads = [r for r in facts.reads if any(r.strides[i] != 0 for i in facts.reduction)]
    return max(reads or facts.reads, key=lambda r: math.prod(int(e) for e in r.buffer.shape))


def _reduce(sch: s_tir.Schedule, block: SBlockRV, config: BlockReductionConfig) -> set[str]:
    """Schedule a reduction as one kernel, or two with split-K; return the names of its epilogue."""
    if all(axis.reduce for axis in block_facts(sch, block).axes):
        # Give a full reduction a unit axis and loop: without, TVM cannot split it.
        zero = tirx.IntImm("int64", 0)
        sch.transform_block_layout(block, index_map(sch, block, lambda *axes: [zero, *axes]))
        for other in leaf_blocks(sch):
            if not sch.get_loops(other):
                sch.add_unit_loop(other)
    facts = block_facts(sch, block)
    read = _main_read(facts)
    loops = sch.get_loops(block)
    reduced = sorted(facts.reduction, key=lambda i: -_step_size(read.strides[i]))
    spatial = [loops[i] for i, a in enumerate(facts.axes) if not a.reduce]
    sch.reorder(*spatial, *(loops[i] for i in reduced))
    steps = fuse_all(sch, [loops[i] for i in reduced])
    if config.split_k > 1:
        return _reduce_split_k(sch, block, facts, steps, config)
    outputs, along = _output_blocks(sch, block), along_reduction(facts)
    scheduled = {sch.get(output).name_hint for output in outputs}
    threads = config.reduce_threads, config.threads
    _split_and_bind(sch, block, outputs, spatial, steps, threads, along, config.unroll)
    return scheduled


def _reduce_split_k(
    sch: s_tir.Schedule,
    block: SBlockRV,
    facts: BlockFacts,
    steps: LoopRV,
    config: BlockReductionConfig,
) -> set[str]:
    """Schedule a reduction as two kernels; return the names of its epilogue.

    Args:
        sch: The schedule.
        block: The reduction.
        facts: Its facts.
        steps: Its fused reduction loop, the innermost one.
        config: The configuration.
    """
    share = config.reduce_threads
    # Two rfactors: each thread reduces alone, then the threads combine. So the bounds check at the
    # end is in a serial reduction. In a cross-thread reduction TVM would guard the exchange itself.
    _, threads = sch.split(steps, [None, config.split_k * share])
    of_thread = sch.rfactor(threads, 0)
    part, _ = sch.split(sch.get_loops(block)[-1], [config.split_k, share])
    of_block = sch.rfactor(part, 0)
    kinds = [axis.reduce for axis in block_facts(sch, of_block).axes]
    outputs = _output_blocks(sch, block)
    scheduled = {sch.get(output).name_hint for output in outputs}
    stores = [of_block, *(sch.cache_write(of_block, n, "local") for n in range(facts.stores))]
    along = along_reduction(facts)
    *spatial, step, threads = sch.get_loops(of_thread)
    part, thread = sch.split(threads, [config.split_k, share])
    sch.reorder(part, *spatial, step, thread)
    outer, inner = [part, *spatial], (step, thread)
    _bind(sch, of_thread, stores, outer, inner, config.threads, along, config.unroll)
    for n in range(facts.stores):
        sch.set_scope(of_thread, n, "local")
    units = sch.get_loops(of_block)[-len(kinds) :]
    shared = units.pop(kinds.index(True))
    sch.reorder(*units, shared)
    sch.bind(shared, "threadIdx.x" if along else "threadIdx.y")
    *spatial, part = sch.get_loops(block)
    last = min(_THREADS, 2 ** math.ceil(math.log2(config.split_k)))
    few = along_reduction(block_facts(sch, block))
    row = min(config.threads, config.arch.threads_block // last)
    _split_and_bind(sch, block, outputs, spatial, part, (last, row), few, config.unroll)
    return scheduled


def _step_size(step: int | None) -> float:
    return math.inf if step is None else abs(step)


def _output_blocks(sch: s_tir.Schedule, block: SBlockRV) -> list[SBlockRV]:
    """Return the blocks that store the outputs of ``block``; its accumulators are in registers.

    Call this while loops are whole: once a loop is split, TVM takes iterations past its end for
    elements.
    """
    facts = block_facts(sch, block)
    consumers = sch.get_consumers(block)
    if len(consumers) == 1:
        after = block_facts(sch, consumers[0])
        alone = len(sch.get_producers(consumers[0])) == 1
        if alone and not after.reduction and after.work == spatial_extent(facts):
            for n in range(facts.stores):
                sch.set_scope(block, n, "local")
            return consumers
    return [sch.cache_write(block, n, "local") for n in range(facts.stores)]


def _split_and_bind(
    sch: s_tir.Schedule,
    block: SBlockRV,
    outputs: Sequence[SBlockRV],
    spatial: Sequence[LoopRV],
    steps: LoopRV,
    threads: tuple[int, int],
    along: bool,
    unroll: int,
) -> None:
    """Bind a reduction: ``threads`` = (threads of a reduction, reductions of a thread block)."""
    step, thread = sch.split(steps, [None, threads[0]])
    _bind(sch, block, outputs, spatial, (step, thread), threads[1], along, unroll)


def _bind(
    sch: s_tir.Schedule,
    block: SBlockRV,
    outputs: Sequence[SBlockRV],
    spatial: Sequence[LoopRV],
    inside: tuple[LoopRV, LoopRV],
    place: int,
    along: bool,
    unroll: int,
) -> None:
    """Bind a split reduction: ``inside`` = (serial loop, loop over the threads that share it)."""
    step, thread = inside
    grid, row = split_threads(sch, fuse_all(sch, spatial), place)
    sch.reorder(grid, row, thread, step)
    sch.bind(grid, "blockIdx.x")
    sch.bind(row, "threadIdx.y" if along else "threadIdx.x")
    sch.bind(thread, "threadIdx.x" if along else "threadIdx.y")
    for output in outputs:
        sch.reverse_compute_at(output, row, preserve_unit_loops=True)
    unrolled(sch, step, unroll)
