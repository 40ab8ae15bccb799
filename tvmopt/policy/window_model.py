"""What a configuration of the window template is expected to cost."""

from __future__ import annotations

import math

from tvmopt.arch.cpu import CpuArch
from tvmopt.policy.cost import COPY, LAUNCH, bandwidth, imbalance
from tvmopt.policy.ranked import Ranked
from tvmopt.policy.region import Region
from tvmopt.schedule.hint import Hint
from tvmopt.schedule.window import WindowForm

# Loads added for each value that finds no register; how much of the shorter of arithmetic and
# traffic is not hidden behind the other.
_RELOAD, _OVERLAP = 0.8, 0.3
# Cycles to begin and end a tile, and for each accumulator's epilogue.
_TILE, _FINISH = 16.0, 2.0
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

    def rank(self, hint: Hint) -> Ranked:
        """Modelled cycles of ``hint``, with what they are made of."""
        arch, block = self._arch, hint.block
        tiles = [math.ceil(e / b) for e, b in zip(self._extents, block, strict=True)]
        vectors = math.ceil(block[-1] / arch.lanes(self._form.facts.dtype))
        accumulators = math.prod(block[:-1]) * vectors
        multiply = self._taps * accumulators / arch.fma_ports
        loads = self._loads(hint, accumulators)
        waits = accumulators < arch.fma_ports * arch.fma_latency
        latency = arch.fma_latency * self._taps if waits else 0.0
        compute = max(multiply, loads / arch.load_ports, latency)
        copied, patch = self._copied(hint, tiles)
        traffic = sum(region.bytes(block) for region in self._regions)
        memory = traffic / bandwidth(patch if hint.stage else self._whole / arch.cores, arch)
        one = max(compute, memory) + _OVERLAP * min(compute, memory)
        one += accumulators * _FINISH + _TILE
        tasks = math.prod(tiles[p] for p in hint.order[: hint.parallel])
        shared = hint.parallel > 0
        cycles = math.prod(tiles) * one
        if shared:
            cycles = cycles * imbalance(tasks, arch.cores) / arch.cores + LAUNCH
        if self._form.producers and hint.stage:
            cycles += copied / COPY / (arch.cores if shared else 1)
        elif self._form.producers:
            size = max(region.bytes(self._extents) for region in self._regions)
            cycles += 2 * size / bandwidth(size, arch) / arch.cores + LAUNCH
        facts = (multiply, loads, one, traffic, self._whole, tasks / arch.cores, patch, copied)
        return Ranked(hint, cycles, facts)

    def _loads(self, hint: Hint, accumulators: int) -> float:
        """Vector loads of one tile: each input once, as long as registers last."""
        if not self._form.unrolled_taps:
            return self._taps * accumulators * len(self._regions)
        vectors = [region.bytes(hint.block) / self._arch.simd_bytes for region in self._regions]
        held = accumulators + max(vectors) / _ROWS_HELD
        excess = max(0.0, held - self._arch.vector_registers + 4)
        return sum(vectors) + self._taps * excess * _RELOAD

    def _copied(self, hint: Hint, tiles: list[int]) -> tuple[float, float]:
        """Bytes that the producers write over all, and at a time."""
        span = list(hint.block)
        for p in hint.order[hint.stage :]:
            span[p] = min(self._extents[p], span[p] * tiles[p])
        runs = math.prod(tiles[p] for p in hint.order[: hint.stage])
        patch = max(region.bytes(span) for region in self._regions)
        return runs * patch, patch
