"""Configuration of the int4 GEMV."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class Int4Config(CudaHint):
    """Tiles and pipeline of the int4 GEMV.

    Attributes:
        tile_rows: Rows of the weight of a thread block.
        warp_rows: Rows of the weight of a warp.
        reduce_warps: Warps that share the reduction of a row.
        stages: Pipeline stages.
    """

    tile_rows: int
    warp_rows: int
    reduce_warps: int = 1
    stages: int = 2

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: whether warps share a reduction."""
        return self.template, self.reduction_scope(self.reduce_warps)

    @property
    def features(self) -> list[float]:
        """Feature vector for the learned ranker."""
        return self.feature_vector(
            tile=self.tile_rows,
            warp_tile=self.warp_rows,
            reduce_threads=self.reduce_warps,
            stages=self.stages,
        )
