"""DepthwiseDotConfig: one configuration of the depthwise family with dot products."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cpu.common.tile_config import TileConfig

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
