"""Configuration of the int4 GEMV."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class Int4Config(CudaHint):
    """Tiles and pipeline of the int4 GEMV.

    Attributes:
        tile: Rows of the weight of a thread block.
        warp_tile: Rows of the weight of a warp.
        reduce_warps: Warps that share the reduction of a row.
        stages: Pipeline stages.
    """

    tile: int
    warp_tile: int
    reduce_warps: int = 1
    stages: int = 2
