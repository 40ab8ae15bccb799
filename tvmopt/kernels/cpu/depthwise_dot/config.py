"""DepthwiseDotConfig: one configuration of the depthwise family with dot products."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cpu.common.tile_config import TileConfig
from tvmopt.kernels.cpu.intrinsics.tap_dots import tap_dot_named

NAME = "depthwise_dot"


@dataclasses.dataclass(frozen=True)
class DepthwiseDotConfig(TileConfig):
    """A tile of (batch, output rows, output columns, channels) whose weight is prepacked.

    Attributes:
        intrinsic: Name of the instruction, a :class:`.tap_dots.TapDot`.
    """

    intrinsic: str = ""

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: channels and rows of the tile, and loop order."""
        return *super().group, self.register_tile[-3:-2]

    @property
    def packed_tile(self) -> str:
        """Lanes and taps of the packed weight; all tiles read it."""
        if not self.intrinsic:
            return ""
        dot = tap_dot_named(self.intrinsic)
        return f"{dot.lanes}x{dot.taps}"
