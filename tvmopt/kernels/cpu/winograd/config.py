"""WinogradConfig: one configuration of the Winograd family."""

from __future__ import annotations

import dataclasses
from typing import Self

from tvmopt.kernels.cpu.common.tile_config import Packing, TileConfig

NAME = "winograd"


@dataclasses.dataclass(frozen=True)
class WinogradConfig(TileConfig):
    """Register tile of the GEMM and L2 block, in tiles along y, tiles along x, output channels.

    ``loop_order`` is the order of the loops over L2 blocks. ``producer_depth`` places the input
    transform: 0 in a separate pass before all L2 blocks, 1 in each L2 block.

    Attributes:
        l2_block: Tiles and output channels that one parallel task computes.
        packing: Layout of the weight, read in place or prepacked.
        prefetch_bytes: Prefetch distance of the weight in the reduction loop; 0 is none.
    """

    l2_block: tuple[int, ...] = ()
    packing: Packing = "none"
    prefetch_bytes: int = 0

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: vector width, channels of an L2 block and loop order."""
        return *super().group, self.l2_block[-1:]

    def without_prefetch(self) -> Self | None:
        """Return the configuration without weight prefetches; None when it has none."""
        return dataclasses.replace(self, prefetch_bytes=0) if self.prefetch_bytes else None
