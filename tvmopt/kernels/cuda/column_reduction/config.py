"""Configurations of the column reduction and the column walk."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class CudaColumnReductionConfig(CudaHint):
    """Threads and loads of a reduction across contiguous memory.

    Attributes:
        threads: Threads along the columns (threadIdx.x).
        reduce_threads: Threads that share a column (threadIdx.y).
        vector_elements: Columns of a thread, in one vector load.
        split_k: Split-K factor, through workspace with a reduction kernel.
        tree: Whether the threads of a column combine by TVM's cross-thread reduction, a tree;
            otherwise one thread adds their partial sums from shared memory.
        unroll: Unroll factor of a thread's reduction loop.
    """

    threads: int
    reduce_threads: int = 1
    vector_elements: int = 1
    split_k: int = 1
    tree: bool = False
    unroll: int = 1


@dataclasses.dataclass(frozen=True)
class ColumnWalkConfig(CudaHint):
    """Threads of several reductions over the same columns.

    Attributes:
        threads: Threads of a block, one for each column.
        unroll: Unroll factor of a thread's loops along its column.
    """

    threads: int
    unroll: int = 1
