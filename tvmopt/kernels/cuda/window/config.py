"""Configurations of the pooling window and of the fallback."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class CudaWindowConfig(CudaHint):
    """Threads and outputs of a pooling or depthwise-convolution window.

    Attributes:
        threads: Threads of a block.
        vector_elements: Outputs of a thread along the innermost axis, one vector.
        vectors_per_thread: Vectors of a thread, along the axis before the innermost.
        vectorize_compute: Whether the arithmetic is vectorised, not only the stores.
    """

    threads: int
    vector_elements: int = 1
    vectors_per_thread: int = 1
    vectorize_compute: bool = False


@dataclasses.dataclass(frozen=True)
class CudaFallbackConfig(CudaHint):
    """Thread block size of the fallback.

    Attributes:
        threads: Threads of a block, one for each output element.
    """

    threads: int
