"""Configurations of the elementwise template, and of the transpose."""

from __future__ import annotations

import itertools
import math

from tvm import IRModule, s_tir, tirx

from tvmopt.arch.cuda import CudaArch
from tvmopt.schedule.analysis import BlockFacts, all_facts
from tvmopt.schedule.gpu.hint import GpuHint
from tvmopt.schedule.gpu.steps import inline_all, moves_by_vectors

from .ranked import GpuRanked
from .stream import Stream

# Instructions of a thread besides those of its elements: indices, and the launch of it.
_PROLOGUE = 25.0


def traffic(facts: BlockFacts) -> float:
    """Bytes that a block reads and writes, each element once."""
    work = math.prod(a.extent for a in facts.axes)
    seen: list[tuple[object, int]] = []
    total = facts.stores * _bytes(facts.write.buffer)
    for read in facts.reads:
        if any(read.buffer.same_as(buffer) for buffer, _ in seen):
            continue
        size = _bytes(read.buffer)
        seen.append((read.buffer, size))
        total += min(size, work * int(read.buffer.dtype.itemsize))
    return float(total)


def _bytes(buffer: tirx.Buffer) -> int:
    return math.prod(int(e) for e in buffer.shape) * int(buffer.dtype.itemsize)


def elementwise_hints(func: tirx.PrimFunc, arch: CudaArch) -> list[GpuRanked]:
    """Configurations of ``gpu_elementwise`` for ``func``, best first; none with a reduction."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    if any(facts.reduction for facts in all_facts(sch)):
        return []
    inline_all(sch)
    blocks = all_facts(sch)
    main = max(blocks, key=lambda facts: facts.work)
    inner = max((i for i, a in enumerate(main.axes) if a.extent > 1), default=0)
    sizes = {int(b.dtype.itemsize) for b in (main.write.buffer, *(r.buffer for r in main.reads))}
    vectors = {16 // max(sizes), 16 // min(sizes), 8 // max(sizes), 1}
    ranked = []
    for vector, unroll, threads, direct in itertools.product(
        sorted(vectors), (1, 2, 4, 8), (128, 256, 512, 1024), (0, 1)
    ):
        if vector < 1 or main.work % vector or (vector == 1 and not direct):
            continue
        if not direct and (
            any(main.conditional) or not moves_by_vectors(main, main.write, inner, vector)
        ):
            continue
        hint = GpuHint(
            "gpu_elementwise", arch, thread=(threads,), vector=vector,
            options=(("direct", direct), ("unroll", unroll)),
        )  # fmt: skip
        stream = _stream(blocks, hint)
        ranked.append(GpuRanked(hint, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)


def _stream(blocks: list[BlockFacts], hint: GpuHint) -> Stream:
    main = max(blocks, key=lambda facts: facts.work)
    unroll = hint.option("unroll", 1)
    each = hint.vector * unroll
    reads = sum(int(r.buffer.dtype.itemsize) for r in main.reads if any(r.strides))
    scalar = any(main.conditional) or any(s is None for r in main.reads for s in r.strides)
    cost = main.size * (1.0 if scalar else 0.5)
    return Stream(
        blocks=math.ceil(main.work / (each * hint.thread[0])),
        threads=hint.thread[0],
        moved=sum(traffic(facts) for facts in blocks),
        flight=max(1.0, each * reads),
        instructions=_PROLOGUE + unroll * (6.0 + 2.0 * len(main.reads)) + each * cost,
        registers=24 + each * reads // 4,
    )


def transpose_hints(func: tirx.PrimFunc, arch: CudaArch) -> list[GpuRanked]:
    """Configurations of ``gpu_transpose`` for ``func``, best first; none where nothing turns."""
    from tvmopt.schedule.gpu.transpose import prepare_transpose

    form = prepare_transpose(func)
    if form is None:
        return []
    size = int(form.read.buffer.dtype.itemsize)
    source, target = (form.facts.axes[i].extent for i in (form.source, form.target))
    ranked = []
    for block, threads, pad in itertools.product(
        ((32, 32), (64, 64), (32, 64), (64, 32), (128, 32), (32, 128), (128, 64)),
        (128, 256, 512),
        (1, 2, 4),
    ):
        for vector in {max(1, 16 // size), max(1, 4 // size), 1}:
            tile = block[0] * block[1]
            if tile // vector < threads or pad * size > 16:
                continue
            used = source * target / (
                math.ceil(source / block[0]) * block[0] * math.ceil(target / block[1]) * block[1]
            )
            each = tile / threads
            ways = max(1.0, vector * size / 4 / 4 if pad * size >= 4 else vector / 2)
            grid = math.ceil(form.facts.work / used / tile)
            lines = max(1.0, 64.0 / (min(block) * size))
            stream = Stream(
                blocks=grid,
                threads=threads,
                moved=traffic(form.facts) * lines,
                flight=each * size,
                instructions=40.0 + each * (2.0 * ways + form.facts.size + 6.0 / vector) / used,
                chain=60.0,
                smem=(block[0] + pad) * block[1] * size,
                registers=40,
            )
            hint = GpuHint(
                "gpu_transpose", arch, block=block, thread=(threads,), vector=vector,
                options=(("pad", pad),),
            )  # fmt: skip
            ranked.append(GpuRanked(hint, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)
