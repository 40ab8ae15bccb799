"""Cost model of a contraction with a register tile: predicted cycles of a configuration."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeVar

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm
from tvmopt.kernels.cpu.common.cost import (
    COPY,
    LAUNCH,
    REMOTE,
    TileNumbers,
    bandwidth,
    imbalance,
    tile_cost,
)
from tvmopt.kernels.cpu.common.region import Region
from tvmopt.kernels.cpu.common.tile_config import TileConfig
from tvmopt.kernels.cpu.common.tile_loops import TileLoops
from tvmopt.kernels.ranked import Ranked

# Cache bytes that one written byte occupies (write-allocate).
_WRITTEN = 1.0

_Config = TypeVar("_Config", bound=TileConfig)


@dataclasses.dataclass(frozen=True)
class CacheBlocking:
    """Blocking of the reduction and of the rows that share a block of the weight.

    Attributes:
        l2_block: Cache block for L2; empty without cache blocking.
        spills: Number of K blocks between which the partial sums are in memory, while the weight
            stays in L1; 0 if the accumulators stay in registers.
    """

    l2_block: tuple[int, ...] = ()
    spills: int = 0


@dataclasses.dataclass(frozen=True)
class ReductionSteps:
    """Reduction of one register tile by other instructions than vector FMAs.

    Attributes:
        count: Reduction steps.
        cycles: Cycles of one step.
    """

    count: int
    cycles: float


class ContractionModel:
    """Cost model for the configurations of one contraction.

    Args:
        form: The contraction.
        arch: The CPU.

    Attributes:
        reduced: Multiply-adds of each output.
    """

    def __init__(self, form: ContractionForm, arch: CpuArch) -> None:
        facts = form.facts
        self.reduced = facts.reduced
        self._form, self._arch = form, arch
        self._extents = form.extents
        self._data = Region(form.data, facts)
        self._itemsize = form.weight.buffer.dtype.itemsize
        self._weight_fixed = [form.weight.strides[i] == 0 for i in facts.spatial]
        self._data_fixed = [form.data.strides[i] == 0 for i in facts.spatial]
        self._steps = facts.reduced // form.depth(arch)
        self._inner = form.steps(arch)

    def rank(
        self,
        hint: _Config,
        *,
        packs_weight: bool = False,
        blocking: CacheBlocking = CacheBlocking(),
        unit: ReductionSteps | None = None,
    ) -> Ranked[_Config]:
        """Return ``hint`` with predicted cycles and the cost model's intermediate values.

        Args:
            hint: The configuration.
            packs_weight: Whether the weight is packed at every call, before the nest.
            blocking: Its cache blocking.
            unit: Its reduction on a matrix unit or by several instructions a dot product; None for
                vector FMAs, or one instruction a dot product.
        """
        loops = TileLoops.of(hint, self._extents, blocking.l2_block)
        tile = self._numbers(hint, loops, blocking, unit)
        cost = tile_cost(tile, self._arch)
        around = self._producer_cycles(hint, loops)
        around += self._pack_cycles() if packs_weight else 0.0
        remote = self._data.remote_bytes(self._extents, loops.shares, self._arch) / REMOTE
        facts = (
            cost.compute,
            cost.traffic,
            cost.overhead,
            around,
            tile.weight_reuse,
            tile.data_reuse,
            loops.tasks / self._arch.cores,
            float(tile.guarded),
        )
        return Ranked(hint, cost.total + around + remote, facts)

    def block_bytes(self, hint: TileConfig) -> float:
        """Return the bytes of data and weight that a register tile reads."""
        *rows, width = hint.register_tile
        weight = self.reduced * width * self._itemsize
        read = self.reduced * math.prod(rows) * self._itemsize  # less than the box with a stride
        return weight + min(read, self._data.bytes(hint.register_tile))

    def _numbers(
        self, hint: _Config, loops: TileLoops, blocking: CacheBlocking, unit: ReductionSteps | None
    ) -> TileNumbers:
        """Return the cost model's inputs for ``hint``."""
        arch, (*others, width) = self._arch, hint.register_tile
        vectors = math.ceil(width / arch.lanes(self._form.facts.dtype))
        rows = math.prod(others)
        lanes = vectors * arch.lanes(self._form.facts.dtype)
        weight_block = self.reduced * lanes * self._itemsize
        working_sets = self._working_sets(loops, weight_block)
        cores = arch.cores if loops.parallel else 1
        uses = math.prod(
            t for t, a in zip(loops.trips, loops.axes, strict=True) if self._weight_fixed[a]
        )
        rounds, far = self._weight_rounds(loops, working_sets)
        in_columns = loops.axes[-1] == len(self._extents) - 1
        return TileNumbers(
            rows=rows,
            vectors=vectors,
            depth=unit.count if unit else self._steps,
            tiles=math.prod(loops.trips),
            weight_block=weight_block,
            weight_reuse=1.0
            if blocking.spills
            else _reuse(loops, working_sets, self._weight_fixed),
            weight_uses=max(1.0, uses / cores),
            spills=blocking.spills,
            data_block=self._data.bytes(loops.tile),
            data_reuse=_reuse(loops, working_sets, self._data_fixed),
            out_bytes=rows * width * self._itemsize * 2,
            out_run=width * self._itemsize * (loops.trips[-1] if in_columns else 1),
            out_total=math.prod(self._extents) * self._itemsize,
            imbalance=imbalance(loops.tasks, arch.cores) if loops.parallel else 1.0,
            parallel=loops.parallel > 0,
            inner=self._inner,
            guarded=loops.parallel > 1 and loops.has_partial_tiles,
            weight_rounds=rounds,
            weight_far=far,
            step=unit.cycles if unit else 0.0,
            widens=self._form.widens(arch),
        )

    def _weight_rounds(
        self, loops: TileLoops, working_sets: Sequence[float]
    ) -> tuple[float, float]:
        """Return one core's passes over the whole weight, and the bytes it touches per pass."""
        place = loops.cache_block
        if place is None:
            return 1.0, 1.0
        cores = self._arch.cores if place < loops.parallel else 1
        return max(1.0, loops.trips[place] / cores), working_sets[len(loops.trips) - 1 - place]

    def _working_sets(self, loops: TileLoops, weight_block: float) -> list[float]:
        """Return the working set of the tile, of the innermost loop, of the next loop, ...

        Bytes of weight, data and output.
        """
        found = []
        columns = 1
        for span, axis, trips in loops.spans():
            if not self._weight_fixed[axis]:
                columns *= trips
            written = _WRITTEN * math.prod(span) * self._itemsize
            found.append(weight_block * columns + self._data.bytes(span) + written)
        return found

    def _producer_cycles(self, hint: _Config, loops: TileLoops) -> float:
        """Return the cycles of the producers: one separate pass, or copies at their loop."""
        if not self._form.producers:
            return 0.0
        arch, depth = self._arch, hint.producer_depth
        if not depth:
            size = self._data.bytes(self._extents)
            return 2 * size / bandwidth(size, arch) / arch.cores + LAUNCH
        runs = math.prod(loops.trips[:depth])
        cores = arch.cores if loops.parallel else 1
        return runs * self._data.bytes(loops.span(depth)) / COPY / cores

    def _pack_cycles(self) -> float:
        """Return the cycles to pack the whole weight."""
        shape = [int(e) for e in self._form.weight.buffer.shape]
        size = math.prod(shape) * self._itemsize
        return 2 * size / COPY / self._arch.cores + LAUNCH


def _reuse(loops: TileLoops, working_sets: Sequence[float], fixed: Sequence[bool]) -> float:
    """Return the reuse distance in bytes: the working set of the innermost loop that reuses it."""
    for trips, axis, working_set in zip(
        reversed(loops.trips), reversed(loops.axes), working_sets, strict=False
    ):
        if trips > 1 and fixed[axis]:
            return working_set
    return working_sets[-1]
