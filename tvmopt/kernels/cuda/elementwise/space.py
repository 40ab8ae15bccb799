"""Enumerate configurations of elementwise, copy and transpose, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math

from tvm import s_tir

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import BlockFacts, all_facts
from tvmopt.kernels.cuda.common.stream_cost import StreamCost
from tvmopt.kernels.cuda.common.traffic import traffic
from tvmopt.kernels.cuda.common.vectors import WIDEST_VECTOR, moves_by_vectors
from tvmopt.kernels.cuda.common.work import float_work
from tvmopt.kernels.cuda.elementwise.config import (
    CopyConfig,
    CudaElementwiseConfig,
    TransposeConfig,
)
from tvmopt.kernels.cuda.elementwise.copy import NAME as COPY_NAME
from tvmopt.kernels.cuda.elementwise.copy import VECTOR, CopyForm
from tvmopt.kernels.cuda.elementwise.schedule import NAME as ELEMENTWISE_NAME
from tvmopt.kernels.cuda.elementwise.schedule import is_flat, vectorizes
from tvmopt.kernels.cuda.elementwise.transpose import NAME as TRANSPOSE_NAME
from tvmopt.kernels.cuda.elementwise.transpose import TransposeForm
from tvmopt.kernels.ranked import Ranked


def elementwise_hints(sch: s_tir.Schedule, arch: CudaArch) -> list[Ranked[CudaElementwiseConfig]]:
    """Return the ``gpu_elementwise`` configurations, fastest predicted first.

    Args:
        sch: A schedule of the function, everything inlined.
        arch: The GPU.
    """
    blocks = all_facts(sch)
    main = max(blocks, key=lambda facts: facts.work)
    inner = max((i for i, a in enumerate(main.axes) if a.extent > 1), default=0)
    sizes = {int(b.dtype.itemsize) for b in (main.write.buffer, *(r.buffer for r in main.reads))}
    lengths = {16 // max(sizes), 16 // min(sizes), 8 // max(sizes), 1}
    cost = float_work(sch, main.name)
    ranked = []
    for vector in sorted(v for v in lengths if 0 < v <= WIDEST_VECTOR // max(sizes)):
        if main.work % vector:
            continue
        ways = _ways(sch, main, inner, vector)
        for vectors, threads, compute in itertools.product(
            (1, 2, 4, 8), (128, 256, 512, 1024), sorted(ways)
        ):
            config = CudaElementwiseConfig(
                ELEMENTWISE_NAME, arch, threads, vector, vectors, compute
            )
            stream = _stream(blocks, config, cost, inner)
            ranked.append(Ranked(config, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)


def _ways(sch: s_tir.Schedule, facts: BlockFacts, inner: int, vector: int) -> set[bool]:
    """Return the values of ``vectorize_compute`` that make a difference for this vector."""
    if vector == 1 or not facts.axes:
        return {True}
    block = sch.get_sblock(facts.name)
    if facts.axes[inner].extent % vector:
        return {True} if is_flat(sch, block, vector) else set()
    ways = {True} if vectorizes(sch, block, inner, vector) else set()
    return ways | ({False} if moves_by_vectors(facts, facts.write, inner, vector) else set())


def _stream(
    blocks: list[BlockFacts], config: CudaElementwiseConfig, cost: float, inner: int
) -> StreamCost:
    """Return the cost model's view of the kernel; ``cost`` is the arithmetic of an element."""
    main = max(blocks, key=lambda facts: facts.work)
    arch, costs = config.arch, config.arch.costs
    vectors, vector, threads = config.vectors_per_thread, config.vector_elements, config.threads
    each = vector * vectors
    reads = sum(int(r.buffer.dtype.itemsize) for r in main.reads if any(r.strides))
    loads, again = 0.0, 0.0
    for read in main.reads:
        step = read.strides[inner] if main.axes else 0
        whole = step == 1 and not any(main.conditional)
        loads += 2.0 if whole or step == 0 or config.vectorize_compute else 2.5 * vector
        if step not in (0, 1):
            # Every element is in another cache line; neighbours may hit the cache later.
            again += 32.0 * main.work
    moved = sum(traffic(facts) for facts in blocks)
    if moved > arch.l2_bytes:
        # DRAM prefers requests close together: many threads, one vector each.
        piece = max(1.0, each * int(main.write.buffer.dtype.itemsize) / 16.0)
        few = 0.0 if threads == arch.threads_block else costs.small_block_dram_share
        moved *= 1.0 + costs.vector_dram_share * math.log2(piece) + few
    return StreamCost(
        blocks=math.ceil(main.work / (each * threads)),
        threads=threads,
        compulsory_bytes=moved + again / 8.0,
        reread_bytes=again,
        in_flight_bytes=max(1.0, each * reads),
        instructions=costs.elementwise_instructions + vectors * (6.0 + loads + vector * cost),
        load_rounds=1.0 + 0.1 * vectors,
        registers=24 + each * reads // 4,
    )


def copy_hints(form: CopyForm, arch: CudaArch) -> list[Ranked[CopyConfig]]:
    """Return the ``gpu_copy`` configurations, fastest predicted first."""
    costs = arch.costs
    size = form.vectors * VECTOR
    ranked = []
    for each, threads in itertools.product((2, 1, 4), (128, 256, 512, 1024)):
        moved, late, like = 2.0 * size, 0.0, threads
        if moved > arch.l2_bytes:
            moved *= 1.0 + costs.vector_dram_share * math.log2(each)
        else:  # as measured: small blocks with two vectors a thread are fastest
            late = costs.copy_step_cycles * (math.log2(threads / 128.0) + abs(each - 2))
            like = 128
        stream = StreamCost(
            blocks=math.ceil(form.vectors / (like * each)),
            threads=like,
            compulsory_bytes=moved,
            in_flight_bytes=float(VECTOR * each),
            instructions=20.0 + 6.0 * each,
        )
        cycles = stream.cycles(arch) * costs.copy_time_ratio + late
        config = CopyConfig(COPY_NAME, arch, threads, each)
        ranked.append(Ranked(config, cycles, stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)


def transpose_hints(form: TransposeForm, arch: CudaArch) -> list[Ranked[TransposeConfig]]:
    """Return the ``gpu_transpose`` configurations, fastest predicted first."""
    size = int(form.read.buffer.dtype.itemsize)
    cost = float_work(form.sch, form.facts.name)
    source, target = (form.facts.axes[i].extent for i in (form.source, form.target))
    ranked = []
    pad = max(1, 4 // size)
    for tile, threads, vector in itertools.product(
        ((32, 32), (64, 64), (32, 64), (64, 32), (128, 32), (32, 128), (128, 64)),
        (128, 256, 512),
        sorted({max(1, 16 // size), max(1, 8 // size), max(1, 4 // size), 1}),
    ):
        elements = tile[0] * tile[1]
        if elements // vector < threads:
            continue
        tiles = math.ceil(source / tile[0]) * math.ceil(target / tile[1])
        grid = form.facts.work // (source * target) * tiles
        each = elements / threads
        line = min(1.0, min(tile) * size / 64.0)
        stream = StreamCost(
            blocks=grid,
            threads=threads,
            compulsory_bytes=traffic(form.facts) / line,
            in_flight_bytes=each * size,
            instructions=40.0
            + each * (2.0 * arch.costs.bank_conflict_degree + cost + 10.0 / vector),
            wait_cycles=60.0,
            load_rounds=1.0 + 0.2 * each / vector,
            smem_bytes=(tile[0] + pad) * tile[1] * size,
            registers=40,
        )
        config = TransposeConfig(TRANSPOSE_NAME, arch, tile, threads, vector, pad)
        ranked.append(Ranked(config, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)
