"""Configuration of the mma.sync GEMM."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class MmaConfig(CudaHint):
    """Tiles, pipeline and packing of a GEMM with mma.sync.

    Attributes:
        tile: Rows and columns of a thread block's tile.
        warp_tile: Rows and columns of a warp's tile.
        k_block: Elements of K in a pipeline stage.
        stages: Pipeline stages; with cp.async any number, else at most 2 through registers.
        async_copy: Whether cp.async fills the stages.
        split_k: Split-K factor, through workspace with a reduction kernel.
        raster_group: Rows of tiles in a raster group; 0 for row-major order.
        double_buffer_fragments: Whether fragments are loaded one step ahead; with 3 stages or more.
        pack_a: Whether A is first packed into aligned tiles.
        pack_b: Whether B is first packed into aligned tiles.
    """

    tile: tuple[int, int]
    warp_tile: tuple[int, int]
    k_block: int
    stages: int = 1
    async_copy: bool = False
    split_k: int = 1
    raster_group: int = 0
    double_buffer_fragments: bool = False
    pack_a: bool = False
    pack_b: bool = False

    @property
    def packs(self) -> tuple[bool, bool]:
        """Whether each operand is packed."""
        return self.pack_a, self.pack_b

    @property
    def warps(self) -> int:
        """Warps of a thread block."""
        return (self.tile[0] // self.warp_tile[0]) * (self.tile[1] // self.warp_tile[1])
