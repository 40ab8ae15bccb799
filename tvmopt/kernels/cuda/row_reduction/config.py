"""Configuration of the row reduction."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint

#: Values of ``CudaRowReductionConfig.row_cache``: where a row is kept between its passes.
NO_CACHE, SHARED, REGISTERS = "none", "shared", "registers"
ROW_CACHES = (NO_CACHE, SHARED, REGISTERS)


@dataclasses.dataclass(frozen=True)
class CudaRowReductionConfig(CudaHint):
    """Threads and loads of reductions along contiguous rows.

    Attributes:
        rows_per_block: Rows of a thread block (threadIdx.y).
        reduce_threads: Threads that share a row (threadIdx.x).
        vector_elements: Elements of a vector load.
        row_cache: Where a row is kept between its passes: ``"none"`` reads it again, ``"shared"``
            memory, or ``"registers"``.
        unroll: Unroll factor of the loop over vectors.
    """

    rows_per_block: int
    reduce_threads: int = 1
    vector_elements: int = 1
    row_cache: str = NO_CACHE
    unroll: int = 1

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: vector length, threads that share a row, row cache, unroll factor."""
        scope = self.reduction_scope(self.reduce_threads)
        return self.template, self.vector_elements, scope, self.row_cache, self.unroll

    @property
    def features(self) -> list[float]:
        """Feature vector for the learned ranker."""
        return self.feature_vector(
            threads=self.rows_per_block,
            reduce_threads=self.reduce_threads,
            vector_elements=self.vector_elements,
            others=(ROW_CACHES.index(self.row_cache), self.unroll),
        )
