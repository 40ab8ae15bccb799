"""Cost model of the register-tile template: predicted cycles of a configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.ranked import Ranked

# Cache bytes that one written byte occupies (write-allocate).
_WRITTEN = 1.0


class RegisterTileModel:
    """Cost model for the configurations of one contraction.

    Args:
        form: The contraction.
        arch: The CPU.
        steps: For a matrix unit: returns the reduction steps of a hint and the cycles per step;
            None for vector FMAs.
    """

    def __init__(
        self,
        form: ContractionForm,
        arch: CpuArch,
        steps: Callable[[CpuHint], tuple[int, float]] | None = None,
    ) -> None:
        facts = form.facts
        self._form, self._arch = form, arch
        self._extents = form.extents
        self._data = Region(form.data, facts)
        self._itemsize = form.weight.buffer.dtype.itemsize
        self._weight_fixed = [form.weight.strides[i] == 0 for i in facts.spatial]
        self._data_fixed = [form.data.strides[i] == 0 for i in facts.spatial]
        self._steps = steps
        self._depth = form.depth(arch)
        self._inner = form.steps(arch)

    def rank(self, hint: CpuHint) -> Ranked[CpuHint]:
        """Return ``hint`` with predicted cycles and the cost model's intermediate values."""
        arch, block, extents = self._arch, hint.block, self._extents
        tiles, axes = self._loops(hint)
        vectors = math.ceil(block[-1] / arch.lanes(self._form.facts.dtype))
        rows = math.prod(block[:-1])
        steps, cycles = self._form.facts.reduced // self._depth, 0.0
        weight_block = steps * vectors * arch.simd_bytes
        if self._steps is not None:
            steps, cycles = self._steps(hint)
        weight_fixed = [self._weight_fixed[axis] for axis in axes]
        data_fixed = [self._data_fixed[axis] for axis in axes]
        inside = self._inside(hint, tiles, axes, weight_block)
        weight_reuse = 1.0 if hint.accumulate else _reuse(hint, tiles, inside, weight_fixed)
        data_reuse = _reuse(hint, tiles, inside, data_fixed)
        tasks = math.prod(tiles[p] for p in hint.order[: hint.parallel])
        cores = arch.cores if hint.parallel else 1
        uses = math.prod(t for t, fixed in zip(tiles, weight_fixed, strict=True) if fixed)
        rounds, far = self._rounds(hint, tiles, inside)
        run = tiles[len(block) - 1] if self._ends_in_columns(hint) else 1
        tile = TileNumbers(
            rows=rows,
            vectors=vectors,
            depth=steps,
            tiles=math.prod(tiles),
            weight_block=weight_block,
            weight_reuse=weight_reuse,
            weight_uses=max(1.0, uses / cores),
            spills=self._inner // hint.rstep if hint.accumulate else 0,
            data_block=self._data.bytes(block),
            data_reuse=data_reuse,
            out_bytes=rows * block[-1] * self._itemsize * 2,
            out_run=block[-1] * self._itemsize * run,
            out_total=math.prod(extents) * self._itemsize,
            imbalance=imbalance(tasks, arch.cores) if hint.parallel else 1.0,
            parallel=hint.parallel > 0,
            inner=self._inner,
            guarded=hint.parallel > 1
            and any(p < len(block) and extents[p] % block[p] for p in hint.order[: hint.parallel]),
            weight_rounds=rounds,
            weight_far=far,
            step=cycles,
        )
        cost = tile_cost(tile, arch)
        stage = self._stage_cycles(hint, tiles, axes) + self._pack_cycles(hint)
        remote = self._remote_cycles(hint, tiles, axes)
        facts = (
            cost.compute,
            cost.traffic,
            cost.overhead,
            stage,
            weight_reuse,
            data_reuse,
            tasks / arch.cores,
            float(tile.guarded),
        )
        return Ranked(hint, cost.total + stage + remote, facts)

    def _ends_in_columns(self, hint: CpuHint) -> bool:
        return hint.order[-1] == len(self._extents) - 1

    def _loops(self, hint: CpuHint) -> tuple[list[int], list[int]]:
        """Return the trip count and the axis of each loop that ``hint.order`` indexes."""
        tiles = [math.ceil(e / b) for e, b in zip(self._extents, hint.block, strict=True)]
        axes = list(range(len(tiles)))
        for axis, size in enumerate(hint.task):
            if size:
                tiles[axis] = size // hint.block[axis]
                tiles.append(math.ceil(self._extents[axis] / size))
                axes.append(axis)
        return tiles, axes

    def _rounds(self, hint: CpuHint, tiles: list[int], inside: list[float]) -> tuple[float, float]:
        """Return one core's passes over the whole weight, and the bytes it touches per pass."""
        if len(hint.order) == len(self._extents):
            return 1.0, 1.0
        parts = len(self._extents)
        place = hint.order.index(parts)
        cores = self._arch.cores if place < hint.parallel else 1
        within = len(hint.order) - 1 - place
        return max(1.0, tiles[parts] / cores), inside[within]

    def _inside(
        self, hint: CpuHint, tiles: list[int], axes: list[int], weight_block: float
    ) -> list[float]:
        """Return the working set of the tile, of the innermost tile loop, of the next loop, ...

        Bytes of weight, data and output.
        """
        found = []
        span, columns = list(hint.block), 1
        for p in (*reversed(hint.order), None):
            written = _WRITTEN * math.prod(span) * self._itemsize
            found.append(weight_block * columns + self._data.bytes(span) + written)
            if p is None:
                break
            axis = axes[p]
            span[axis] = min(self._extents[axis], span[axis] * tiles[p])
            if not self._weight_fixed[axis]:
                columns *= tiles[p]
        return found

    def _stage_cycles(self, hint: CpuHint, tiles: list[int], axes: list[int]) -> float:
        """Return the cycles of the producers: one separate pass, or copies at their loop."""
        if not self._form.producers:
            return 0.0
        arch = self._arch
        size = self._data.bytes(self._extents)
        if not hint.stage:
            return 2 * size / bandwidth(size, arch) / arch.cores + LAUNCH
        span = list(hint.block)
        for p in hint.order[hint.stage :]:
            span[axes[p]] = min(self._extents[axes[p]], span[axes[p]] * tiles[p])
        runs = math.prod(tiles[p] for p in hint.order[: hint.stage])
        return runs * self._data.bytes(span) / COPY / (arch.cores if hint.parallel else 1)

    def _remote_cycles(self, hint: CpuHint, tiles: list[int], axes: list[int]) -> float:
        """Return one core's cycles to read data from the caches of other cores."""
        shares = [(axes[p], tiles[p]) for p in hint.order[: hint.parallel]]
        return self._data.remote_bytes(self._extents, shares, self._arch) / REMOTE

    def _pack_cycles(self, hint: CpuHint) -> float:
        """Return the cycles to pack the weight at every call; 0 for a prepacked weight."""
        if hint.pack != "call":
            return 0.0
        shape = [int(e) for e in self._form.weight.buffer.shape]
        size = math.prod(shape) * self._itemsize
        return 2 * size / COPY / self._arch.cores + LAUNCH


def _reuse(hint: CpuHint, tiles: list[int], inside: list[float], fixed: Sequence[bool]) -> float:
    """Return the reuse distance in bytes: the working set of the innermost loop that reuses it."""
    for k, p in enumerate(reversed(hint.order)):
        if tiles[p] > 1 and fixed[p]:
            return inside[k]
    return inside[-1]
