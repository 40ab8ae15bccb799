"""Whether a convolution is faster on a GPU in tiles of 2 x 2 or 4 x 4 outputs, or direct.

Times of products on plain threads, from multiply-adds and from bytes, and of the transforms, from
bytes alone; each kernel costs a launch. Not yet fitted to measurements of these kernels.
"""

from __future__ import annotations

import math

from tvmopt.device.cuda import CudaArch

# The share of a GPU's multiply-adds that a product reaches, as measured at 4096^3 (52 of 59
# TFLOP/s on an H200), and how many more elements of depth the begin and the end of a tile cost.
_REACHED, _ENDS = 0.88, 24
# Tiles of a thread block, with their share of that rate.
_TILES = (
    (128, 128, 1.0), (128, 64, 0.95), (64, 64, 0.87), (64, 32, 0.72), (32, 32, 0.55),
    (32, 16, 0.4), (16, 16, 0.25),
)  # fmt: skip
_SPLITS = (1, 2, 4, 8, 16)
# The share of a bandwidth that kernels reach, and of L2 that holds what the next kernel reads.
_STREAMED, _NEAR_L2 = 0.85, 0.5
# Microseconds of each further kernel of a CUDA graph.
_KERNEL_US = 2.5
# Share of the direct convolution's time from which on it is kept, being exact; and from which on
# the smaller tile is, which rounds less.
_WORTHWHILE, _NEARLY = 0.9, 0.9
# Elements that 32-bit indices can tell apart, and the share of device memory that the transformed
# data and the products may take together.
_MOST_ELEMENTS, _MOST_MEMORY = 2**31, 0.125
_FLOAT = 4
# Channels of the data, and of the result, below which other kernels than plain products are faster.
_LEAST_CHANNELS = 16


def choose_gpu_tile(
    positions: tuple[int, int, int], channels: int, outputs: int, image: int, arch: CudaArch
) -> int:
    """The tile size that a 3 x 3 convolution of stride 1 in float32 should have; 0 keeps it direct.

    Direct stays also what has fewer than 16 channels on either side, or an array of 2^31 elements
    or more, or whose transformed data and products take more than an eighth of the GPU's memory.

    Args:
        positions: Batch, height and width of the result.
        channels: Of the data.
        outputs: Channels of the result.
        image: Elements of the data.
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


def grid_of(positions: tuple[int, int, int], m: int) -> tuple[int, int, int]:
    """Images, tiles along y and tiles along x that ``positions`` (images, height, width) are."""
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
    """Why tiles of ``m`` are impossible; empty where they are not."""
    transformed, products, weight = _sizes(m, positions, channels, outputs)
    largest = max(transformed, products, weight, image, math.prod(positions) * outputs)
    if largest >= _MOST_ELEMENTS:
        return f"an array of {largest} elements, where 32-bit indices reach {_MOST_ELEMENTS - 1}"
    taken = (transformed + products) * _FLOAT
    if taken > _MOST_MEMORY * arch.memory_bytes:
        return f"{taken} bytes between the kernels, of {arch.memory_bytes} of the GPU"
    return ""


def direct_us(
    positions: tuple[int, int, int], channels: int, outputs: int, image: int, arch: CudaArch
) -> float:
    """Microseconds of the convolution as one product of 9 ``channels`` depth."""
    rows = math.prod(positions)
    moved = (image + rows * outputs + 9 * channels * outputs) * _FLOAT
    return _product_us((1, rows, outputs, 9 * channels), moved, arch)


def winograd_us(
    m: int,
    positions: tuple[int, int, int],
    channels: int,
    outputs: int,
    image: int,
    arch: CudaArch,
) -> float:
    """Microseconds of the convolution in tiles of ``m``: three kernels."""
    points, tiles = (m + 2) ** 2, math.prod(grid_of(positions, m))
    transformed, products, weight = _sizes(m, positions, channels, outputs)
    between = (transformed + products + weight) * _FLOAT
    product = _product_us((points, tiles, outputs, channels), between, arch)
    # Each tile reads its own (m + 2)^2 inputs, those of its neighbours from a cache.
    there = _moved_us((image + transformed) * _FLOAT, 2 * transformed * _FLOAT, arch)
    back = (products + math.prod(positions) * outputs) * _FLOAT
    return product + there + _moved_us(back, back, arch)


def _sizes(
    m: int, positions: tuple[int, int, int], channels: int, outputs: int
) -> tuple[int, int, int]:
    """Elements of the transformed data, of the products and of the transformed weight."""
    points, tiles = (m + 2) ** 2, math.prod(grid_of(positions, m))
    return points * tiles * channels, points * tiles * outputs, points * channels * outputs


def _moved_us(moved: float, cached: float, arch: CudaArch) -> float:
    """Microseconds of a kernel that moves bytes, ``cached`` of them through L2 in any case."""
    near = moved <= _NEAR_L2 * arch.l2_bytes
    memory = 0.0 if near else moved / (arch.dram_gbs * 1e3)
    return max(memory, max(moved, cached) / (arch.l2_gbs * 1e3)) / _STREAMED + _KERNEL_US


def _product_us(extents: tuple[int, int, int, int], moved: float, arch: CudaArch) -> float:
    """Microseconds of a batched product (batch, rows, columns, depth) that moves bytes."""
    batch, rows, columns, depth = extents
    # Multiply-adds of one multiprocessor in a microsecond.
    rate = arch.fp32_fma * arch.clock_ghz * 1e3 * _REACHED
    best = math.inf
    for high, wide, share in _TILES:
        tiles = batch * math.ceil(rows / high) * math.ceil(columns / wide)
        for split in _SPLITS:
            if split > 1 and (tiles > arch.sms or depth < 64 * split):
                break
            turns = math.ceil(tiles * split / arch.sms)
            work = turns * high * wide * (math.ceil(depth / split) + _ENDS) / (rate * share)
            if split > 1:  # a second kernel sums the parts
                parts = 2.0 * split * batch * rows * columns * _FLOAT
                work += _moved_us(parts, parts, arch)
            best = min(best, work)
    return max(best, _moved_us(moved, moved, arch) - _KERNEL_US) + _KERNEL_US
