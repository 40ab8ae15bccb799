"""Configurations of the Winograd transforms, and of a whole Winograd convolution."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.simt.config import SimtConfig


@dataclasses.dataclass(frozen=True)
class WinogradTransformConfig(CudaHint):
    """Threads and tiles of a Winograd input or output transform.

    Attributes:
        threads: Threads of a block.
        vector_elements: Channels of a thread, one vector.
        tiles_per_thread: Tiles of a thread, side by side.
    """

    threads: int
    vector_elements: int = 1
    tiles_per_thread: int = 1


@dataclasses.dataclass(frozen=True)
class WinogradConvConfig(SimtConfig):
    """Configuration of a whole Winograd convolution: its batched GEMM, and the tile size.

    Attributes:
        m: Tile size: m x m outputs.
    """

    m: int = 4

    @property
    def gemm(self) -> SimtConfig:
        """Configuration of the batched GEMM."""
        names = [field.name for field in dataclasses.fields(SimtConfig)]
        return SimtConfig(**{name: getattr(self, name) for name in names})

    @property
    def group(self) -> tuple[object, ...]:
        """As of the GEMM, and the tile size."""
        return *super().group, self.m
