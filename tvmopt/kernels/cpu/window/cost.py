"""Cost model of the depthwise and pooling template: predicted cycles of a configuration."""

from __future__ import annotations

import math

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.cost import COPY, FILL, LAUNCH, REMOTE, imbalance
from tvmopt.kernels.cpu.common.region import Region
from tvmopt.kernels.cpu.hint import INLINED, CpuHint
from tvmopt.kernels.cpu.window.schedule import WindowForm
from tvmopt.kernels.ranked import Ranked

# Cycles per tap of each register spill; fraction of min(compute, traffic) that does not overlap.
_SPILL, _OVERLAP = 2.0, 0.3
# Cycles to enter and leave a tile, and of the epilogue per accumulator.
_TILE, _FINISH = 16.0, 2.0
# Slowdown of inlined padding: constant factor; increase per accumulator beyond _MOST_HELD, which
# LLVM keeps in registers across branches; factor if a tile has neighbours along two axes.
_AROUND, _CROWDED, _MOST_HELD, _TWO_WAYS = 1.05, 0.08, 8, 1.25
# Input rows of a tile, about the window's height; one row at a time is in registers.
_ROWS_HELD = 3


class WindowModel:
    """Cost model for the configurations of one function.

    Args:
        form: The normalised function.
        arch: The CPU.
    """

    def __init__(self, form: WindowForm, arch: CpuArch) -> None:
        facts = form.facts
        self._form, self._arch, self._taps = form, arch, facts.reduced
        self._extents = form.extents
        self._regions = [Region(read, facts) for read in facts.reads]
        self._whole = sum(region.bytes(self._extents) for region in self._regions)

    def rank(self, hint: CpuHint) -> Ranked[CpuHint]:
        """Return ``hint`` with predicted cycles and the cost model's intermediate values."""
        arch, block = self._arch, hint.block
        tiles = [math.ceil(e / b) for e, b in zip(self._extents, block, strict=True)]
        lanes = self._form.vector(block[-1], arch, around=hint.stage == INLINED)
        vectors = math.ceil(block[-1] / lanes)
        accumulators = math.prod(block[:-1]) * vectors
        multiply = self._taps * accumulators / arch.fma_ports
        loads, spilled = self._loads(hint, accumulators)
        waits = accumulators < arch.fma_ports * arch.fma_latency
        latency = arch.fma_latency * self._taps if waits else 0.0
        compute = max(multiply, loads / arch.load_ports, latency) + self._taps * spilled * _SPILL
        copied, patch = self._copied(hint, tiles)
        traffic = self._traffic(hint, tiles)
        memory = traffic / math.prod(tiles)
        one = max(compute, memory) + _OVERLAP * min(compute, memory)
        one += accumulators * _FINISH + _TILE
        tasks = math.prod(tiles[p] for p in hint.order[: hint.parallel])
        shared = hint.parallel > 0
        cycles = math.prod(tiles) * one
        if shared:
            cycles = cycles * imbalance(tasks, arch.cores) / arch.cores + LAUNCH
            cycles += self._remote_cycles(hint, tiles)
        if hint.stage == INLINED:
            cycles *= _AROUND + _CROWDED * max(0, accumulators - _MOST_HELD)
            cycles *= _TWO_WAYS if sum(size > 1 for size in block[:-1]) > 1 else 1.0
        elif self._form.producers and hint.stage:
            cycles += copied / COPY / (arch.cores if shared else 1)
        elif self._form.producers:
            size = max(region.bytes(self._extents) for region in self._regions)
            cycles += size / COPY / arch.cores + LAUNCH
        facts = (multiply, loads, one, traffic, self._whole, tasks / arch.cores, patch, copied)
        return Ranked(hint, cycles, facts)

    def _remote_cycles(self, hint: CpuHint, tiles: list[int]) -> float:
        """Return one core's cycles to read data from the caches of other cores."""
        shares = [(p, tiles[p]) for p in hint.order[: hint.parallel]]
        data = max(self._regions, key=lambda region: region.bytes(self._extents))
        return data.remote_bytes(self._extents, shares, self._arch) / REMOTE

    def _loads(self, hint: CpuHint, accumulators: int) -> tuple[float, float]:
        """Return a tile's vector loads (each input once), and its register spills."""
        if not self._form.unrolled_taps:
            return self._taps * accumulators * len(self._regions), 0.0
        vectors = [region.bytes(hint.block) / self._arch.simd_bytes for region in self._regions]
        held = accumulators + max(vectors) / _ROWS_HELD
        return sum(vectors), max(0.0, held - self._arch.vector_registers + 4)

    def _traffic(self, hint: CpuHint, tiles: list[int]) -> float:
        """Return the cycles of all tiles' L1 and L2 misses.

        A cache holds the working set of the inner loops, up to some depth. Every iteration of the
        outer loops reads that working set from the next level.
        """
        arch = self._arch
        cycles = 0.0
        for size, rate in (
            (arch.l1_bytes, arch.l2_bandwidth),
            (arch.l2_bytes, arch.l3_bandwidth),
        ):
            for depth in range(len(hint.order) + 1):
                span = self._span(hint, tiles, depth)
                held = sum(region.bytes(span) for region in self._regions)
                if held <= FILL * size or depth == len(hint.order):
                    cycles += math.prod(tiles[p] for p in hint.order[:depth]) * held / rate
                    break
        return cycles

    def _span(self, hint: CpuHint, tiles: list[int], depth: int) -> list[int]:
        """Return the elements of each axis that the loops inside ``depth`` compute."""
        span = list(hint.block)
        for p in hint.order[depth:]:
            span[p] = min(self._extents[p], span[p] * tiles[p])
        return span

    def _copied(self, hint: CpuHint, tiles: list[int]) -> tuple[float, float]:
        """Return the bytes that the producers write in total, and per execution."""
        depth = max(0, hint.stage)
        span = self._span(hint, tiles, depth)
        runs = math.prod(tiles[p] for p in hint.order[:depth])
        patch = max(region.bytes(span) for region in self._regions)
        return runs * patch, patch
