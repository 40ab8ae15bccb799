"""Sizes of a Winograd convolution on a GPU: tiles, and the arrays between its kernels."""

from __future__ import annotations

import math

from tvmopt.device.cuda import CudaArch

# Limit of 32-bit indices in elements, and the fraction of device memory that the transformed data
# and the GEMM results may occupy together.
_MOST_ELEMENTS, _MOST_MEMORY = 2**31, 0.125
_FLOAT = 4


def grid_of(positions: tuple[int, int, int], m: int) -> tuple[int, int, int]:
    """Return images, tiles along y and tiles along x for ``positions`` (images, height, width)."""
    batch, height, width = positions
    return batch, math.ceil(height / m), math.ceil(width / m)


def why_not_tiles(
    m: int,
    positions: tuple[int, int, int],
    channels: int,
    outputs: int,
    image: int,
    arch: CudaArch,
) -> str:
    """Return why tiles of ``m`` are impossible; empty when they are possible."""
    transformed, gemm_output, weight = sizes_of(m, positions, channels, outputs)
    largest = max(transformed, gemm_output, weight, image, math.prod(positions) * outputs)
    if largest >= _MOST_ELEMENTS:
        return f"an array of {largest} elements, where 32-bit indices reach {_MOST_ELEMENTS - 1}"
    taken = (transformed + gemm_output) * _FLOAT
    if taken > _MOST_MEMORY * arch.memory_bytes:
        return f"{taken} bytes between the kernels, of {arch.memory_bytes} of the GPU"
    return ""


def sizes_of(
    m: int, positions: tuple[int, int, int], channels: int, outputs: int
) -> tuple[int, int, int]:
    """Return element counts of transformed data, GEMM results and transformed weight."""
    points, tiles = (m + 2) ** 2, math.prod(grid_of(positions, m))
    return points * tiles * channels, points * tiles * outputs, points * channels * outputs
