"""Cost model: Winograd with 2 x 2 or 4 x 4 tiles against direct convolution on a GPU.

GEMM time on CUDA cores follows a roofline of multiply-adds and bytes. Transform time follows bytes
alone. Each kernel adds a launch. The model is not fitted to measurements of these kernels yet.
"""

from __future__ import annotations

import math

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.winograd.sizes import grid_of, sizes_of, why_not_tiles

# Fraction of peak multiply-adds that a GEMM reaches, measured at 4096^3 (52 of 59 TFLOP/s on an
# H200), and prologue plus epilogue of a tile, in elements of K.
_REACHED, _ENDS = 0.88, 24
# Thread block tiles (m, n) with their fraction of that rate.
_TILES = (
    (128, 128, 1.0), (128, 64, 0.95), (64, 64, 0.87), (64, 32, 0.72), (32, 32, 0.55),
    (32, 16, 0.4), (16, 16, 0.25),
)  # fmt: skip
_SPLITS = (1, 2, 4, 8, 16)
# Fraction of peak bandwidth that kernels reach, and fraction of L2 that keeps data for the next
# kernel.
_STREAMED, _NEAR_L2 = 0.85, 0.5
# Launch time in microseconds of each further kernel of a CUDA graph.
_KERNEL_US = 2.5
# Time ratio against direct convolution from which the exact direct algorithm is kept, and time
# ratio from which the smaller tile is kept, which has smaller rounding errors.
_WORTHWHILE, _NEARLY = 0.9, 0.9
_FLOAT = 4
# Minimum input and output channels; below, other kernels are faster than a plain GEMM.
_LEAST_CHANNELS = 16


def choose_gpu_tile(
    positions: tuple[int, int, int], channels: int, outputs: int, image: int, arch: CudaArch
) -> int:
    """Return the best tile size of a float32 3 x 3 convolution with stride 1; 0 for direct.

    Three further cases stay direct: fewer than 16 input or output channels, an array of 2^31 or
    more elements, or transformed data and GEMM results beyond an eighth of GPU memory.

    Args:
        positions: Batch, height and width of the output.
        channels: Input channels.
        outputs: Output channels.
        image: Number of elements of the data.
        arch: The GPU.
    """
    if min(channels, outputs) < _LEAST_CHANNELS:
        return 0
    direct = direct_us(positions, channels, outputs, image, arch)
    costs = {
        m: winograd_us(m, positions, channels, outputs, image, arch)
        for m in (2, 4)
        if not why_not_tiles(m, positions, channels, outputs, image, arch)
    }
    if not costs:
        return 0
    best = min(costs, key=lambda m: costs[m])
    if 2 in costs and costs[2] * _NEARLY <= costs[best]:
        best = 2
    return best if costs[best] < _WORTHWHILE * direct else 0


def direct_us(
    positions: tuple[int, int, int], channels: int, outputs: int, image: int, arch: CudaArch
) -> float:
    """Return microseconds of the direct convolution as one GEMM with K = 9 ``channels``."""
    rows = math.prod(positions)
    moved = (image + rows * outputs + 9 * channels * outputs) * _FLOAT
    return _gemm_us((1, rows, outputs, 9 * channels), moved, arch)


def winograd_us(
    m: int,
    positions: tuple[int, int, int],
    channels: int,
    outputs: int,
    image: int,
    arch: CudaArch,
) -> float:
    """Return microseconds of the Winograd convolution with tile size ``m``: three kernels."""
    points, tiles = (m + 2) ** 2, math.prod(grid_of(positions, m))
    transformed, gemm_output, weight = sizes_of(m, positions, channels, outputs)
    between = (transformed + gemm_output + weight) * _FLOAT
    gemm = _gemm_us((points, tiles, outputs, channels), between, arch)
    # Each tile reads its own (m + 2)^2 inputs; the overlap with its neighbours hits the cache.
    there = _moved_us((image + transformed) * _FLOAT, 2 * transformed * _FLOAT, arch)
    back = (gemm_output + math.prod(positions) * outputs) * _FLOAT
    return gemm + there + _moved_us(back, back, arch)


def _moved_us(moved: float, cached: float, arch: CudaArch) -> float:
    """Return microseconds of a kernel that moves bytes, ``cached`` of them always through L2."""
    near = moved <= _NEAR_L2 * arch.l2_bytes
    memory = 0.0 if near else moved / (arch.dram_gbs * 1e3)
    return max(memory, max(moved, cached) / (arch.l2_gbs * 1e3)) / _STREAMED + _KERNEL_US


def _gemm_us(extents: tuple[int, int, int, int], moved: float, arch: CudaArch) -> float:
    """Return microseconds of a batched GEMM (batch, rows, columns, depth) that moves bytes."""
    batch, rows, columns, depth = extents
    # Multiply-adds per SM and microsecond.
    rate = arch.fp32_fma * arch.clock_ghz * 1e3 * _REACHED
    best = math.inf
    for high, wide, share in _TILES:
        tiles = batch * math.ceil(rows / high) * math.ceil(columns / wide)
        for split in _SPLITS:
            if split > 1 and (tiles > arch.sms or depth < 64 * split):
                break
            turns = math.ceil(tiles * split / arch.sms)
            work = turns * high * wide * (math.ceil(depth / split) + _ENDS) / (rate * share)
            if split > 1:  # a second kernel reduces the partial accumulators
                parts = 2.0 * split * batch * rows * columns * _FLOAT
                work += _moved_us(parts, parts, arch)
            best = min(best, work)
    return max(best, _moved_us(moved, moved, arch) - _KERNEL_US) + _KERNEL_US
