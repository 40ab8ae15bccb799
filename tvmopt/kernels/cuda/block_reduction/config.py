"""Configuration of the block reduction."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class BlockReductionConfig(CudaHint):
    """Threads of few long reductions.

    Attributes:
        reductions_per_block: Reductions of a thread block.
        reduce_threads: Threads of a block that share a reduction.
        split_k: Split-K factor: thread blocks that share a reduction, with a second kernel.
        unroll: Unroll factor of a thread's reduction loop.
    """

    reductions_per_block: int
    reduce_threads: int
    split_k: int = 1
    unroll: int = 1

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: threads and blocks that share a reduction, unroll factor."""
        scope = self.reduction_scope(self.reduce_threads)
        return self.template, scope, self.split_k > 1, self.unroll

    @property
    def features(self) -> list[float]:
        """Feature vector for the learned ranker."""
        return self.feature_vector(
            threads=self.reductions_per_block,
            reduce_threads=self.reduce_threads,
            split_k=self.split_k,
            others=(self.unroll,),
        )
