"""Configuration of the SIMT GEMM."""

from __future__ import annotations

import dataclasses
import math

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class SimtConfig(CudaHint):
    """Tiles and pipeline of a GEMM with FMA instructions.

    Attributes:
        tile: Rows and columns of a thread block's tile.
        threads: Threads along the rows and along the columns.
        k_block: Elements of K in a pipeline stage.
        stages: Pipeline stages; with cp.async any number, else at most 2 through registers.
        async_copy: Whether cp.async fills the stages.
        split_k: Split-K factor, through workspace with a reduction kernel.
        raster_group: Rows of tiles in a raster group; 0 for row-major order.
        warp_rows: Threads of a warp along the rows.
    """

    tile: tuple[int, int]
    threads: tuple[int, int]
    k_block: int
    stages: int = 1
    async_copy: bool = False
    split_k: int = 1
    raster_group: int = 0
    warp_rows: int = 4

    @property
    def fmas_per_k_block(self) -> int:
        """Multiply-adds of a thread in a K block; the code unrolls them."""
        return self.k_block * math.prod(self.tile) // math.prod(self.threads)
