"""Enumerate configurations of elementwise, copy and transpose, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import BlockFacts, all_facts
from tvmopt.kernels.cuda.common.steps import WIDEST_VECTOR, inlined_passes, moves_by_vectors
from tvmopt.kernels.cuda.common.stream_cost import StreamCost
from tvmopt.kernels.cuda.common.traffic import traffic
from tvmopt.kernels.cuda.common.work import float_work
from tvmopt.kernels.cuda.elementwise.copy import NAME as COPY_NAME
from tvmopt.kernels.cuda.elementwise.copy import VECTOR, prepare_copy
from tvmopt.kernels.cuda.elementwise.schedule import NAME as ELEMENTWISE_NAME
from tvmopt.kernels.cuda.elementwise.schedule import is_flat, vectorizes
from tvmopt.kernels.cuda.elementwise.transpose import NAME as TRANSPOSE_NAME
from tvmopt.kernels.cuda.elementwise.transpose import prepare_transpose
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.ranked import Ranked

# Instructions of a thread besides its elements: indices and launch.
_PROLOGUE = 25.0
# Relative DRAM time that each doubling of a thread's bytes beyond 16 adds; and that blocks of fewer
# than the most threads add.
_SCATTER, _FEW = 0.03, 0.004
# Extra cycles of small copies for each doubling of the block, and for each vector more or less than
# two; time of a plain copy relative to another kernel.
_LATER, _PLAIN = 120.0, 0.95
# Mean bank-conflict degree of accesses to a shared-memory tile.
_SHARED_WAYS = 1.5


def elementwise_hints(func: tirx.PrimFunc, arch: CudaArch) -> list[Ranked[CudaHint]]:
    """Return the ``gpu_elementwise`` configurations, fastest first; none with a reduction."""
    found = inlined_passes(func)
    if found is None:
        return []
    sch, _ = found
    blocks = all_facts(sch)
    main = max(blocks, key=lambda facts: facts.work)
    inner = max((i for i, a in enumerate(main.axes) if a.extent > 1), default=0)
    sizes = {int(b.dtype.itemsize) for b in (main.write.buffer, *(r.buffer for r in main.reads))}
    vectors = {16 // max(sizes), 16 // min(sizes), 8 // max(sizes), 1}
    cost = float_work(sch, main.name)
    ranked = []
    for vector in sorted(v for v in vectors if 0 < v <= WIDEST_VECTOR // max(sizes)):
        if main.work % vector:
            continue
        ways = _ways(sch, main, inner, vector)
        for unroll, threads, direct in itertools.product(
            (1, 2, 4, 8), (128, 256, 512, 1024), sorted(ways)
        ):
            hint = CudaHint(
                ELEMENTWISE_NAME, arch, thread=(threads,), vector=vector,
                options=(("direct", direct), ("unroll", unroll)),
            )  # fmt: skip
            stream = _stream(blocks, hint, cost, inner, arch)
            ranked.append(Ranked(hint, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)


def _ways(sch: s_tir.Schedule, facts: BlockFacts, inner: int, vector: int) -> set[int]:
    """Return the values of option ``direct`` that make a difference for this vector length."""
    if vector == 1 or not facts.axes:
        return {1}
    block = sch.get_sblock(facts.name)
    if facts.axes[inner].extent % vector:
        return {1} if is_flat(sch, block, vector) else set()
    ways = {1} if vectorizes(sch, block, inner, vector) else set()
    return ways | ({0} if moves_by_vectors(facts, facts.write, inner, vector) else set())


def _stream(
    blocks: list[BlockFacts], hint: CudaHint, cost: float, inner: int, arch: CudaArch
) -> StreamCost:
    """Return the cost model's view of the kernel; ``cost`` is the arithmetic of an element."""
    main = max(blocks, key=lambda facts: facts.work)
    unroll, vector = hint.option("unroll", 1), hint.vector
    each = vector * unroll
    reads = sum(int(r.buffer.dtype.itemsize) for r in main.reads if any(r.strides))
    loads, again = 0.0, 0.0
    for read in main.reads:
        step = read.strides[inner] if main.axes else 0
        whole = step == 1 and not any(main.conditional)
        loads += 2.0 if whole or step == 0 or hint.option("direct") else 2.5 * vector
        if step not in (0, 1):
            # Every element is in a line of its own; neighbours may hit the cache later.
            again += 32.0 * main.work
    moved = sum(traffic(facts) for facts in blocks)
    if moved > arch.l2_bytes:
        # DRAM prefers requests close together: many threads, one vector each.
        piece = max(1.0, each * int(main.write.buffer.dtype.itemsize) / 16.0)
        moved *= 1.0 + _SCATTER * math.log2(piece) + (0.0 if hint.thread[0] == 1024 else _FEW)
    return StreamCost(
        blocks=math.ceil(main.work / (each * hint.thread[0])),
        threads=hint.thread[0],
        moved=moved + again / 8.0,
        again=again,
        flight=max(1.0, each * reads),
        instructions=_PROLOGUE + unroll * (6.0 + loads + vector * cost),
        rounds=1.0 + 0.1 * unroll,
        registers=24 + each * reads // 4,
    )


def copy_hints(func: tirx.PrimFunc, arch: CudaArch) -> list[Ranked[CudaHint]]:
    """Return the ``gpu_copy`` configurations, fastest first; none where it is no plain copy."""
    form = prepare_copy(func)
    if form is None:
        return []
    size = form.vectors * VECTOR
    ranked = []
    for each, threads in itertools.product((2, 1, 4), (128, 256, 512, 1024)):
        hint = CudaHint(COPY_NAME, arch, thread=(threads,), options=(("unroll", each),))
        moved, late, like = 2.0 * size, 0.0, threads
        if moved > arch.l2_bytes:
            moved *= 1.0 + _SCATTER * math.log2(each)
        else:  # as measured: small blocks with two vectors a thread are fastest
            late, like = _LATER * (math.log2(threads / 128.0) + abs(each - 2)), 128
        stream = StreamCost(
            blocks=math.ceil(form.vectors / (like * each)),
            threads=like,
            moved=moved,
            flight=float(VECTOR * each),
            instructions=20.0 + 6.0 * each,
        )
        cycles = stream.cycles(arch) * _PLAIN + late
        ranked.append(Ranked(hint, cycles, stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)


def transpose_hints(func: tirx.PrimFunc, arch: CudaArch) -> list[Ranked[CudaHint]]:
    """Return the ``gpu_transpose`` configurations, fastest first; none without a transpose."""
    form = prepare_transpose(func)
    if form is None:
        return []
    size = int(form.read.buffer.dtype.itemsize)
    cost = float_work(form.sch, form.facts.name)
    source, target = (form.facts.axes[i].extent for i in (form.source, form.target))
    ranked = []
    pad = max(1, 4 // size)
    for block, threads, vector in itertools.product(
        ((32, 32), (64, 64), (32, 64), (64, 32), (128, 32), (32, 128), (128, 64)),
        (128, 256, 512),
        sorted({max(1, 16 // size), max(1, 8 // size), max(1, 4 // size), 1}),
    ):
        tile = block[0] * block[1]
        if tile // vector < threads:
            continue
        tiles = math.ceil(source / block[0]) * math.ceil(target / block[1])
        grid = form.facts.work // (source * target) * tiles
        each = tile / threads
        line = min(1.0, min(block) * size / 64.0)
        stream = StreamCost(
            blocks=grid,
            threads=threads,
            moved=traffic(form.facts) / line,
            flight=each * size,
            instructions=40.0 + each * (2.0 * _SHARED_WAYS + cost + 10.0 / vector),
            chain=60.0,
            rounds=1.0 + 0.2 * each / vector,
            smem=(block[0] + pad) * block[1] * size,
            registers=40,
        )
        hint = CudaHint(
            TRANSPOSE_NAME, arch, block=block, thread=(threads,), vector=vector,
            options=(("pad", pad),),
        )  # fmt: skip
        ranked.append(Ranked(hint, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)
