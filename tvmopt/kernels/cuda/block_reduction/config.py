"""Configuration of the block reduction."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class BlockReductionConfig(CudaHint):
    """Threads of few long reductions.

    Attributes:
        threads: Threads along the results: reductions of a thread block.
        reduce_threads: Threads of a block that share a reduction.
        split_k: Split-K factor: thread blocks that share a reduction, with a second kernel.
        unroll: Unroll factor of a thread's reduction loop.
    """

    threads: int
    reduce_threads: int
    split_k: int = 1
    unroll: int = 1
