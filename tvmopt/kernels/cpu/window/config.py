"""WindowConfig: one configuration of the depthwise and pooling family."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cpu.common.tile_config import TileConfig

NAME = "window"
# Value of ``WindowConfig.producer_depth`` that inlines the producers (compute_inline).
INLINED = -1


@dataclasses.dataclass(frozen=True)
class WindowConfig(TileConfig):
    """A register tile of outputs x channels; ``producer_depth`` may be ``INLINED``."""

    @property
    def inlined(self) -> bool:
        """Whether the padding is inlined into the tile."""
        return self.producer_depth == INLINED

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: vector width, loop order and whether the padding is inlined."""
        return *super().group, self.inlined
