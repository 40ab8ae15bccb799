"""TileLoops: trip counts of the loops around a register tile, for the cost models."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from tvmopt.kernels.cpu.common.tile_config import TileConfig


@dataclasses.dataclass(frozen=True)
class TileLoops:
    """The loops around a register tile, outermost first.

    Attributes:
        extents: Extents of the data-parallel axes.
        tile: The register tile.
        axes: Axis of each loop.
        trips: Trip count of each loop.
        parallel: Number of outermost loops that run in parallel.
    """

    extents: tuple[int, ...]
    tile: tuple[int, ...]
    axes: tuple[int, ...]
    trips: tuple[int, ...]
    parallel: int

    @classmethod
    def of(
        cls, hint: TileConfig, extents: Sequence[int], l2_block: Sequence[int] = ()
    ) -> TileLoops:
        """Return the loops of ``hint``; those over ``l2_block`` follow the axes in its order."""
        tile = hint.register_tile
        trips = [math.ceil(e / b) for e, b in zip(extents, tile, strict=True)]
        axes = list(range(len(trips)))
        for axis, size in enumerate(l2_block):
            if size:
                trips[axis] = size // tile[axis]
                trips.append(math.ceil(extents[axis] / size))
                axes.append(axis)
        order = hint.loop_order
        return cls(
            tuple(extents),
            tile,
            tuple(axes[p] for p in order),
            tuple(trips[p] for p in order),
            hint.parallel_loops,
        )

    @property
    def tasks(self) -> int:
        """Number of parallel tasks."""
        return math.prod(self.trips[: self.parallel])

    @property
    def cache_block(self) -> int | None:
        """Position of the loop over L2 blocks: the outer one of two loops over an axis."""
        return next((n for n, a in enumerate(self.axes) if a in self.axes[n + 1 :]), None)

    @property
    def has_partial_tiles(self) -> bool:
        """Whether the last tile of a parallel axis is partial."""
        parallel = self.axes[: self.parallel]
        return any(self.extents[axis] % self.tile[axis] for axis in parallel)

    @property
    def shares(self) -> list[tuple[int, int]]:
        """Axis and trip count of each parallel loop."""
        return list(zip(self.axes, self.trips, strict=True))[: self.parallel]

    def spans(self) -> Iterator[tuple[list[int], int, int]]:
        """Yield what the tile computes, the innermost loop, the next loop, ...

        Yields:
            Elements of each axis, and axis and trip count of the loop; of the tile itself, axis 0
            and 1.
        """
        span = list(self.tile)
        yield span, 0, 1
        for axis, trips in zip(reversed(self.axes), reversed(self.trips), strict=True):
            span[axis] = min(self.extents[axis], span[axis] * trips)
            yield span, axis, trips

    def span(self, depth: int) -> list[int]:
        """Return the elements of each axis that the loops inside the first ``depth`` compute."""
        span = list(self.tile)
        for axis, trips in zip(self.axes[depth:], self.trips[depth:], strict=True):
            span[axis] = min(self.extents[axis], span[axis] * trips)
        return span
