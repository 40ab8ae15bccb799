"""Enumerate configurations of the window and fallback templates, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math

from tvm import s_tir

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import BlockFacts, all_facts
from tvmopt.kernels.cuda.common.stream_cost import StreamCost
from tvmopt.kernels.cuda.common.traffic import traffic
from tvmopt.kernels.cuda.common.vectors import WIDEST_VECTOR, widest
from tvmopt.kernels.cuda.common.work import float_work
from tvmopt.kernels.cuda.window.config import CudaFallbackConfig, CudaWindowConfig
from tvmopt.kernels.cuda.window.schedule import FALLBACK_NAME, WIDEST, WINDOW_NAME
from tvmopt.kernels.ranked import Ranked


def window_hints(
    sch: s_tir.Schedule, facts: BlockFacts, arch: CudaArch
) -> list[Ranked[CudaWindowConfig]]:
    """Return the ``gpu_window`` configurations for one reduction, fastest predicted first.

    Args:
        sch: A schedule of the function, everything inlined.
        facts: Facts of its reduction.
        arch: The GPU.
    """
    size = int(facts.write.buffer.dtype.itemsize)
    inner = facts.axes[facts.spatial[-1]].extent if facts.spatial else 1
    before = facts.axes[facts.spatial[-2]].extent if len(facts.spatial) > 1 else 1
    lengths = {math.gcd(inner, v) for v in (1, 2, 4, 8, 16 // size)}
    cost = float_work(sch, facts.name)
    ranked = []
    for vector, threads, compute, vectors in itertools.product(
        sorted(lengths), (64, 128, 256), (False, True), (1, 2, 4, 7, 8)
    ):
        if before % vectors or (compute and vector == 1) or vector * vectors > 32:
            continue
        if vector * widest(facts) > WIDEST_VECTOR or (compute and vector * size > WIDEST):
            continue
        config = CudaWindowConfig(WINDOW_NAME, arch, threads, vector, vectors, compute)
        stream = _window(facts, config, cost)
        ranked.append(Ranked(config, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)


def _window(facts: BlockFacts, config: CudaWindowConfig, cost: float) -> StreamCost:
    """Return the cost model's view of the kernel; ``cost`` is the arithmetic of a tap."""
    threads, vector, tile = config.threads, config.vector_elements, config.vectors_per_thread
    by_element = not config.vectorize_compute and vector > 1
    inner = facts.spatial[-1] if facts.spatial else None
    before = facts.spatial[-2] if len(facts.spatial) > 1 else None
    results = facts.work // facts.reduced
    deep = facts.reduced
    size = max((int(r.buffer.dtype.itemsize) for r in facts.reads), default=4)
    loads, again = 0.0, 0.0
    for read in facts.reads:
        step = 0 if inner is None else read.strides[inner]
        still = step == 0
        wide = 1.0 if still or (not by_element and step == 1) else vector
        times = 1.0 if before is not None and read.strides[before] == 0 else tile
        loads += times * (3.0 + wide * config.arch.costs.window_load_instructions)
        again += results * deep * size * (times / tile) / (vector if still else 1.0)
    guards = 4.0 * tile if any(facts.conditional) else 0.0
    taps = min(deep, 9)
    return StreamCost(
        blocks=math.ceil(results / vector / tile / threads),
        threads=threads,
        compulsory_bytes=traffic(facts),
        reread_bytes=again,
        in_flight_bytes=float(vector * size * taps),
        instructions=40.0 + deep * (vector * tile * cost + loads + guards),
        load_rounds=math.ceil(deep / 9),
        registers=32 + tile * vector * size // 4 + vector * taps * size // 4,
    )


def fallback_hints(sch: s_tir.Schedule, arch: CudaArch) -> list[Ranked[CudaFallbackConfig]]:
    """Return the ``gpu_fallback`` configurations, fastest predicted first."""
    ranked = []
    facts = all_facts(sch)
    for threads in (128, 64, 256):
        cycles = 0.0
        for one in facts:
            alike = CudaWindowConfig(WINDOW_NAME, arch, threads)
            stream = _window(one, alike, float_work(sch, one.name))
            cycles += stream.cycles(arch) * arch.costs.fallback_time_ratio
        ranked.append(Ranked(CudaFallbackConfig(FALLBACK_NAME, arch, threads), cycles))
    return sorted(ranked, key=lambda r: r.cycles)
