"""Configuration of the GEMV kernel."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class GemvConfig(CudaHint):
    """Threads and loads of a GEMV.

    Attributes:
        row_threads: Threads along the rows of the weight (threadIdx.y).
        rows_per_thread: Rows of the weight that a thread reads.
        reduce_threads: Threads that share a row (threadIdx.x).
        vector_elements: Elements of the weight in a vector load.
        unroll: Unroll factor of the loop over vectors.
    """

    row_threads: int
    rows_per_thread: int = 1
    reduce_threads: int = 1
    vector_elements: int = 1
    unroll: int = 1

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: vector length, threads that share a row, unroll factor."""
        scope = self.reduction_scope(self.reduce_threads)
        return self.template, self.vector_elements, scope, self.unroll

    @property
    def features(self) -> list[float]:
        """Feature vector for the learned ranker."""
        return self.feature_vector(
            tile=self.rows_per_thread,
            threads=self.row_threads,
            reduce_threads=self.reduce_threads,
            vector_elements=self.vector_elements,
            others=(self.unroll,),
        )
