"""Configurations of elementwise functions, transposes and copies."""

from __future__ import annotations

import dataclasses

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


@dataclasses.dataclass(frozen=True)
class CopyConfig(CudaHint):
    """Threads of a copy.

    Attributes:
        threads: Threads of a block.
        vectors_per_thread: Vectors of 16 bytes of a thread.
    """

    threads: int
    vectors_per_thread: int = 1
