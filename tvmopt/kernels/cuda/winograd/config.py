"""Configuration of the Winograd transforms."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint


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
