"""CudaHint: what the configurations of all CUDA kernel families share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.hint import Hint

# Length of every feature vector.
_FEATURES = 13


@dataclasses.dataclass(frozen=True)
class CudaHint(Hint):
    """Configuration of a CUDA kernel. Each family has a subclass with the fields that it uses."""

    arch_type: ClassVar[type] = CudaArch

    arch: CudaArch

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict; :meth:`from_dict` is the inverse."""
        return super().to_dict() | {"arch": self.arch.to_dict()}

    def reduction_scope(self, threads: int) -> str:
        """Return what ``threads`` threads that share a reduction are: a thread, warp or block."""
        return "block" if threads > self.arch.warp else "warp" if threads > 1 else "thread"

    def feature_vector(
        self,
        *,
        tile: int = 1,
        threads: int = 1,
        warp_tile: int = 1,
        reduce_threads: int = 1,
        vector_elements: int = 1,
        split_k: int = 1,
        k_block: int = 0,
        stages: int = 1,
        others: Sequence[float] = (),
    ) -> list[float]:
        """Return the features: the same size of every family at the same place.

        Args:
            tile: Elements of a tile.
            threads: Threads along its axes.
            warp_tile: Elements of a warp's tile.
            reduce_threads: Threads that share a reduction.
            vector_elements: Elements of a vector access.
            split_k: Split-K factor.
            k_block: Elements of K in a stage.
            stages: Pipeline stages.
            others: Up to four values that only this family has.
        """
        sizes = (tile, threads, warp_tile, reduce_threads, vector_elements, split_k)
        numbers = [
            float(len(self.template)),
            *(math.log2(max(1, size)) for size in sizes),
            float(k_block),
            float(stages),
            *map(float, others),
        ]
        return numbers + [0.0] * (_FEATURES - len(numbers))
