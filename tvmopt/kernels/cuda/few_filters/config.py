"""Configuration of the convolution with few output channels."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class FewFiltersConfig(CudaHint):
    """Threads and pixels of a convolution with few output channels.

    Attributes:
        threads: Threads of a block.
        pixels: Output pixels of a thread, along a row; each with all output channels.
    """

    threads: int
    pixels: int
