"""Configuration of the GEMV kernel."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class GemvConfig(CudaHint):
    """Threads and loads of a GEMV.

    Attributes:
        threads: Threads along the rows of the weight (threadIdx.y).
        rows_per_thread: Rows of the weight that a thread reads.
        reduce_threads: Threads that share a row (threadIdx.x).
        vector_elements: Elements of the weight in a vector load.
        unroll: Unroll factor of the loop over vectors.
    """

    threads: int
    rows_per_thread: int = 1
    reduce_threads: int = 1
    vector_elements: int = 1
    unroll: int = 1
