"""Configuration of the row reduction."""

from __future__ import annotations

import dataclasses
import enum

from tvmopt.kernels.cuda.hint import CudaHint


class RowCache(enum.IntEnum):
    """Where a row is kept between its passes."""

    NONE = 0
    SHARED = 1
    REGISTERS = 2


@dataclasses.dataclass(frozen=True)
class CudaRowReductionConfig(CudaHint):
    """Threads and loads of reductions along contiguous rows.

    Attributes:
        threads: Threads along the rows (threadIdx.y): rows of a thread block.
        reduce_threads: Threads that share a row (threadIdx.x).
        vector_elements: Elements of a vector load.
        row_cache: Where a row is kept between its passes; it is read again without a cache.
        unroll: Unroll factor of the loop over vectors.
    """

    threads: int
    reduce_threads: int = 1
    vector_elements: int = 1
    row_cache: RowCache = RowCache.NONE
    unroll: int = 1
