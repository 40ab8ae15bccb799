"""Cost model of the loops around a tile of a window: cache traffic, padding, threads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.cost import COPY, FILL, LAUNCH, REMOTE, imbalance
from tvmopt.kernels.cpu.common.nest import TiledForm
from tvmopt.kernels.cpu.common.region import Region
from tvmopt.kernels.cpu.common.tile_loops import TileLoops

# Fraction of min(compute, traffic) that does not overlap.
_OVERLAP = 0.3
# Relative rate of copies that do not stay in L2, on CPUs with vectors of that many bytes. Fit to
# depthwise convolutions on an Emerald Rapids, see benchmarks/results/2026-11-28-amx-ranking.md.
_FAR, _WIDE = 0.25, 64


class WindowTraffic:
    """Traffic and threads of the configurations of one function.

    Args:
        form: The normalised function.
        arch: The CPU.
        least_channels: Fewest channels of an operand that a cache reads: a cache line.
        copy_rate: Bytes per cycle at which padding is copied.
    """

    def __init__(
        self, form: TiledForm, arch: CpuArch, least_channels: int = 1, copy_rate: float = COPY
    ) -> None:
        self._form, self._arch, self._copy_rate = form, arch, copy_rate
        self._least_channels = min(least_channels, form.extents[-1])
        self._regions = [Region(read, form.facts) for read in form.facts.reads]
        self.operand_bytes = sum(region.bytes(form.extents) for region in self._regions)

    def operands(self, tile: Sequence[int]) -> list[int]:
        """Return the bytes of each operand that a tile reads."""
        return [region.bytes(tile) for region in self._regions]

    def _cached(self, tile: Sequence[int]) -> int:
        """Return the bytes of all operands that a cache reads for a tile."""
        return sum(self.operands((*tile[:-1], max(tile[-1], self._least_channels))))

    def misses(self, loops: TileLoops) -> float:
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
            for depth in range(len(loops.trips) + 1):
                span = loops.span(depth)
                held = self._cached(span)
                if held <= FILL * size or depth == len(loops.trips):
                    cycles += math.prod(loops.trips[:depth]) * held / rate
                    break
        return cycles

    def tile_cycles(self, compute: float, loops: TileLoops) -> float:
        """Return the cycles of one tile from its compute cycles and its cache misses."""
        memory = self.misses(loops) / math.prod(loops.trips)
        return max(compute, memory) + _OVERLAP * min(compute, memory)

    def all_tiles(self, tile_cycles: float, loops: TileLoops) -> float:
        """Return the cycles of the busiest core for all tiles."""
        cycles = math.prod(loops.trips) * tile_cycles
        if not loops.parallel:
            return cycles
        cores = self._arch.cores
        return cycles * imbalance(loops.tasks, cores) / cores + LAUNCH + self._remote_cycles(loops)

    def padding(self, loops: TileLoops, depth: int) -> float:
        """Return the cycles of the producers (padding) at ``depth``; 0 is a separate pass."""
        if not self._form.producers:
            return 0.0
        if depth:
            copied, patch = self.copied(loops, depth)
            return copied / self._rate(patch) / (self._arch.cores if loops.parallel else 1)
        size = max(region.bytes(self._form.extents) for region in self._regions)
        return size / self._rate(size) / self._arch.cores + LAUNCH

    def _rate(self, patch: float) -> float:
        """Return the bytes per cycle at which a patch of padded data is copied and read again."""
        far = self._arch.simd_bytes == _WIDE and patch > FILL * self._arch.l2_bytes
        return self._copy_rate * (_FAR if far else 1.0)

    def copied(self, loops: TileLoops, depth: int) -> tuple[float, float]:
        """Return the bytes that producers at ``depth`` write in total, and per execution."""
        span = loops.span(depth)
        patch = max(region.bytes(span) for region in self._regions)
        return math.prod(loops.trips[:depth]) * patch, patch

    def _remote_cycles(self, loops: TileLoops) -> float:
        """Return one core's cycles to read data from the caches of other cores."""
        extents = self._form.extents
        data = max(self._regions, key=lambda region: region.bytes(extents))
        return data.remote_bytes(extents, loops.shares, self._arch) / REMOTE
