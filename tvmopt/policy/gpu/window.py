"""Configurations of the templates in which one thread computes a result by itself."""

from __future__ import annotations

import itertools
import math

from tvmopt.arch.cuda import CudaArch
from tvmopt.schedule.analysis import BlockFacts
from tvmopt.schedule.gpu.hint import GpuHint

from .elementwise import traffic
from .ranked import GpuRanked
from .stream import Stream


def window_hints(facts: BlockFacts, arch: CudaArch) -> list[GpuRanked]:
    """Configurations of ``gpu_window`` for a function of one reduction, best first."""
    results = facts.work // facts.reduced
    size = int(facts.write.buffer.dtype.itemsize)
    inner = facts.axes[facts.spatial[-1]].extent if facts.spatial else 1
    vectors = {math.gcd(inner, v) for v in (1, 2, 4, 8, 16 // size)}
    ranked = []
    for vector, threads, direct in itertools.product(sorted(vectors), (64, 128, 256, 512), (0, 1)):
        hint = GpuHint(
            "gpu_window", arch, thread=(threads,), vector=vector,
            options=(("direct", direct), ("unroll", 64)),
        )  # fmt: skip
        stream = _window(facts, hint, results, size)
        ranked.append(GpuRanked(hint, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)


def _window(facts: BlockFacts, hint: GpuHint, results: int, size: int) -> Stream:
    (threads,), vector = hint.thread, hint.vector
    deep = facts.reduced
    loads = sum(1.0 + (vector - 1.0) * (not any(r.strides)) for r in facts.reads)
    return Stream(
        blocks=math.ceil(results / vector / threads),
        threads=threads,
        moved=traffic(facts),
        again=float(results * deep * size),
        flight=float(vector * size * min(deep, 9)),
        instructions=40.0 + deep * (vector * facts.size * 0.3 + 4.0 * loads + 4.0),
        rounds=math.ceil(deep / 9),
        registers=32 + vector * (1 + min(deep, 9) * size // 4),
    )


def fallback_hints(facts: list[BlockFacts], arch: CudaArch) -> list[GpuRanked]:
    """Configurations of ``gpu_fallback``, which takes all, best first."""
    ranked = []
    for threads in (128, 64, 256):
        cycles = 0.0
        for one in facts:
            stream = _window(one, GpuHint("", arch, thread=(threads,)), one.work // one.reduced, 4)
            cycles += stream.cycles(arch) * 1.5
        hint = GpuHint("gpu_fallback", arch, thread=(threads,), options=(("direct", 1),))
        ranked.append(GpuRanked(hint, cycles))
    return sorted(ranked, key=lambda r: r.cycles)
