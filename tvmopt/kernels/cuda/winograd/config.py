"""Configuration of the Winograd transforms."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class WinogradTransformConfig(CudaHint):
    """Threads and tiles of a Winograd input or output transform.

    Attributes:
        threads: Threads of a block.
        vector_elements: Channels of a thread, one vector.
        tiles_per_thread: Tiles of a thread, side by side.
    """

    threads: int
    vector_elements: int = 1
    tiles_per_thread: int = 1

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: vector length and tiles of a thread."""
        return self.template, self.vector_elements, self.tiles_per_thread

    @property
    def features(self) -> list[float]:
        """Feature vector for the learned ranker."""
        return self.feature_vector(
            threads=self.threads,
            vector_elements=self.vector_elements,
            others=(self.tiles_per_thread,),
        )
