"""RegisterTileConfig: one configuration of the register-tile family."""

from __future__ import annotations

import dataclasses
from typing import Self

from tvmopt.kernels.cpu.common.tile_config import ContractionConfig
from tvmopt.kernels.cpu.intrinsics import dot_named

NAME = "register_tile"


@dataclasses.dataclass(frozen=True)
class RegisterTileConfig(ContractionConfig):
    """Register tile, cache blocking and weight packing of a contraction.

    ``loop_order`` indexes the tile loops of the axes, then the loops over ``l2_block``.

    Attributes:
        l2_block: Cache block for L2: elements of each axis that are computed together; 0 for the
            full extent of an axis, empty without cache blocking.
        k_block: Elements of the innermost reduction axis per block; 0 is the full extent.
        loops_in_k_block: Number of innermost tile loops inside the K-block loop. Their partial sums
            stay in memory, and the weight's K block stays in L1.
        prefetch_bytes: Prefetch distance of the weight in the reduction loop; 0 is none. Only x86
            uses it.
    """

    l2_block: tuple[int, ...] = ()
    k_block: int = 0
    loops_in_k_block: int = 0
    prefetch_bytes: int = 0

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: vector width, loop order and K blocking."""
        return *super().group, self.k_block > 0, self.loops_in_k_block

    @property
    def packed_tile(self) -> str:
        """Columns of a tile, rounded up to whole vectors, and K group of an instruction."""
        if self.packing != "prepacked":
            return ""
        width = self.register_tile[-1]
        if self.intrinsic:
            dot = dot_named(self.intrinsic)
            return f"{-(-width // dot.lanes) * dot.lanes}x{dot.depth}"
        lanes = self.arch.lanes("float32")
        return f"{-(-width // lanes) * lanes}"

    def without_prefetch(self) -> Self | None:
        """Return the configuration without weight prefetches; None when it has none."""
        return dataclasses.replace(self, prefetch_bytes=0) if self.prefetch_bytes else None
