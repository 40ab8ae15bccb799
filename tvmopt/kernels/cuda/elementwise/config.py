"""Configurations of elementwise functions, transposes and copies."""

from __future__ import annotations

import dataclasses
import math

from tvmopt.kernels.cuda.hint import CudaHint


@dataclasses.dataclass(frozen=True)
class CudaElementwiseConfig(CudaHint):
    """Threads and vectors of an elementwise function.

    Attributes:
        threads: Threads of a block.
        vector_elements: Output elements of a vector.
        vectors_per_thread: Vectors of a thread.
        vectorize_compute: Whether the arithmetic is vectorised too; otherwise vectors are loaded
            into registers, computed by element, and stored.
    """

    threads: int
    vector_elements: int = 1
    vectors_per_thread: int = 1
    vectorize_compute: bool = False

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: vector length, vectorised arithmetic, vectors of a thread."""
        vectors = self.vector_elements, self.vectorize_compute, self.vectors_per_thread
        return self.template, *vectors

    @property
    def features(self) -> list[float]:
        """Feature vector for the learned ranker."""
        return self.feature_vector(
            threads=self.threads,
            vector_elements=self.vector_elements,
            others=(self.vectorize_compute, self.vectors_per_thread),
        )


@dataclasses.dataclass(frozen=True)
class TransposeConfig(CudaHint):
    """Tile and threads of a transpose through shared memory.

    Attributes:
        tile: Elements along the axis that is contiguous in the input, and in the output.
        threads: Threads of a block.
        vector_elements: Most elements of a vector access.
        row_padding: Padding of a shared-memory row against bank conflicts, in elements.
    """

    tile: tuple[int, int]
    threads: int
    vector_elements: int = 1
    row_padding: int = 1

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: vector length and row padding."""
        return self.template, self.vector_elements, self.row_padding

    @property
    def features(self) -> list[float]:
        """Feature vector for the learned ranker."""
        return self.feature_vector(
            tile=math.prod(self.tile),
            threads=self.threads,
            vector_elements=self.vector_elements,
            others=(self.row_padding,),
        )


@dataclasses.dataclass(frozen=True)
class CopyConfig(CudaHint):
    """Threads of a copy.

    Attributes:
        threads: Threads of a block.
        vectors_per_thread: Vectors of 16 bytes of a thread.
    """

    threads: int
    vectors_per_thread: int = 1

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: vectors of a thread."""
        return self.template, self.vectors_per_thread

    @property
    def features(self) -> list[float]:
        """Feature vector for the learned ranker."""
        return self.feature_vector(threads=self.threads, others=(self.vectors_per_thread,))
