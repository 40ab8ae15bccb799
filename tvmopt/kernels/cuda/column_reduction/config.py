"""Configurations of the column reduction and the column walk."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class CudaColumnReductionConfig(CudaHint):
    """Threads and loads of a reduction across contiguous memory.

    Attributes:
        column_threads: Threads along the columns (threadIdx.x).
        reduce_threads: Threads that share a column (threadIdx.y).
        vector_elements: Columns of a thread, in one vector load.
        split_k: Split-K factor, through workspace with a reduction kernel.
        tree: Whether the threads of a column combine by TVM's cross-thread reduction, a tree;
            otherwise one thread adds their partial sums from shared memory.
        unroll: Unroll factor of a thread's reduction loop.
    """

    column_threads: int
    reduce_threads: int = 1
    vector_elements: int = 1
    split_k: int = 1
    tree: bool = False
    unroll: int = 1

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: vector length, how a column is shared, unroll factor."""
        scope = self.reduction_scope(self.reduce_threads)
        shared = scope, self.split_k > 1, self.tree
        return self.template, self.vector_elements, *shared, self.unroll

    @property
    def features(self) -> list[float]:
        """Feature vector for the learned ranker."""
        return self.feature_vector(
            threads=self.column_threads,
            reduce_threads=self.reduce_threads,
            vector_elements=self.vector_elements,
            split_k=self.split_k,
            others=(self.tree, self.unroll),
        )


@dataclasses.dataclass(frozen=True)
class ColumnWalkConfig(CudaHint):
    """Threads of several reductions over the same columns.

    Attributes:
        threads: Threads of a block, one for each column.
        unroll: Unroll factor of a thread's loops along its column.
    """

    threads: int
    unroll: int = 1

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: unroll factor."""
        return self.template, self.unroll

    @property
    def features(self) -> list[float]:
        """Feature vector for the learned ranker."""
        return self.feature_vector(threads=self.threads, others=(self.unroll,))
