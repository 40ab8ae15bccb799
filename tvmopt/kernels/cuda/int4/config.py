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
        early_launch: Whether the next kernel may start before this one ends (PDL trigger).
        l2_stages: Stages of each warp after the ring's that are prefetched into L2 while this
            kernel waits for the one before it (constant weights only).
    """

    tile: int
    warp_tile: int
    reduce_warps: int = 1
    stages: int = 2
    early_launch: bool = False
    l2_stages: int = 0
