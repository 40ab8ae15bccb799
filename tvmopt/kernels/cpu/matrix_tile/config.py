"""MatrixTileConfig: one configuration of the AMX family."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cpu.common.tile_config import ContractionConfig

NAME = "matrix_tile"


@dataclasses.dataclass(frozen=True)
class MatrixTileConfig(ContractionConfig):
    """A register tile of one, two or four AMX tiles; ``packing`` is never ``"none"``."""
