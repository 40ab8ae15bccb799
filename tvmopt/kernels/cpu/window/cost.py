"""What a configuration of the window template is expected to cost."""

from __future__ import annotations

import math

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.cost import COPY, FILL, LAUNCH, REMOTE, imbalance
from tvmopt.kernels.cpu.common.region import Region
from tvmopt.kernels.cpu.hint import INLINED, CpuHint
from tvmopt.kernels.cpu.window.schedule import WindowForm
from tvmopt.kernels.ranked import Ranked

# Cycles a tap for each value that finds no register; how much of the shorter of arithmetic and
# traffic is not hidden behind the other.
_SPILL, _OVERLAP = 2.0, 0.3
# Cycles to begin and end a tile, and for each accumulator's epilogue.
_TILE, _FINISH = 16.0, 2.0
# What reading around the padding costs: always, for each accumulator beyond as many as LLVM keeps
# in registers across the branches, and where a tile has neighbours along more than one axis.
_AROUND, _CROWDED, _MOST_HELD, _TWO_WAYS = 1.05, 0.08, 8, 1.25
# Rows of inputs that a tile holds at a time, about: the window's height.
_ROWS_HELD = 3


class WindowModel:
    """Costs of one function's configurations.

    Args:
        form: The function, made ready.
        arch: The CPU.
    """

    def __init__(self, form: WindowForm, arch: CpuArch) -> None:
        facts = form.facts
        self._form, self._arch, self._taps = form, arch, facts.reduced
        self._extents = form.extents
        self._regions = [Region(read, facts) for read in facts.reads]
        self._whole = sum(region.bytes(self._extents) for region in self._regions)

    def rank(self, hint: CpuHint) -> Ranked[CpuHint]:
        """Modelled cycles of ``hint``, with what they are made of."""
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
        """Cycles of one core to get the data that others have written."""
        shares = [(p, tiles[p]) for p in hint.order[: hint.parallel]]
        data = max(self._regions, key=lambda region: region.bytes(self._extents))
        return data.remote_bytes(self._extents, shares, self._arch) / REMOTE

    def _loads(self, hint: CpuHint, accumulators: int) -> tuple[float, float]:
        """Vector loads of one tile, each input once; and values that find no register."""
        if not self._form.unrolled_taps:
            return self._taps * accumulators * len(self._regions), 0.0
        vectors = [region.bytes(hint.block) / self._arch.simd_bytes for region in self._regions]
        held = accumulators + max(vectors) / _ROWS_HELD
        return sum(vectors), max(0.0, held - self._arch.vector_registers + 4)

    def _traffic(self, hint: CpuHint, tiles: list[int]) -> float:
        """Cycles in which all tiles get what L1, and what L2, does not hold any more.

        A cache holds what the loops inside of some depth read; every run of the loops outside of
        it reads that again from the next level.
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
        """Elements of each axis that the loops inside of ``depth`` compute."""
        span = list(hint.block)
        for p in hint.order[depth:]:
            span[p] = min(self._extents[p], span[p] * tiles[p])
        return span

    def _copied(self, hint: CpuHint, tiles: list[int]) -> tuple[float, float]:
        """Bytes that the producers write over all, and at a time."""
        depth = max(0, hint.stage)
        span = self._span(hint, tiles, depth)
        runs = math.prod(tiles[p] for p in hint.order[:depth])
        patch = max(region.bytes(span) for region in self._regions)
        return runs * patch, patch
