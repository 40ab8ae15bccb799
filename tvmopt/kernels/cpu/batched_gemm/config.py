"""BatchedGemmConfig: one configuration of the batched GEMM family."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cpu.common.tile_config import TileConfig

NAME = "batched_gemm"


@dataclasses.dataclass(frozen=True)
class BatchedGemmConfig(TileConfig):
    """A register tile of each GEMM; ``producer_depth`` is 0, as operands have no producers."""
