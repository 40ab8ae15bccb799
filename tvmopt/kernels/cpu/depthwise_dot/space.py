"""Configuration space of the depthwise family with dot products, with predicted cycles."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.stage import divisors
from tvmopt.kernels.cpu.common.tile_loops import TileLoops
from tvmopt.kernels.cpu.common.window_traffic import WindowTraffic
from tvmopt.kernels.cpu.depthwise_dot.config import NAME, DepthwiseDotConfig
from tvmopt.kernels.cpu.depthwise_dot.form import DepthwiseForm
from tvmopt.kernels.cpu.depthwise_dot.schedule import shaped
from tvmopt.kernels.cpu.intrinsics.depthwise_tile import DepthwiseTile
from tvmopt.kernels.cpu.intrinsics.tap_dots import TapDot, find_tap_dot
from tvmopt.kernels.ranked import Ranked

# Channels of 8 bits in a cache line; all are in one tile, if possible.
_LINE = 64
# Most output rows of a tile, and fewest columns of a wide image.
_MOST_ROWS, _FEWEST_COLUMNS = 8, 8
# Most bytes of the accumulators of a tile, which are on the stack.
_MOST_SCRATCH = 128 * 1024
# Cycles to enter and leave a tile, and of the epilogue per accumulator.
_TILE, _FINISH = 24.0, 2.5
# Fewest bytes that the epilogue stores at once without a slowdown, and the slowdown of fewer.
_SHORT_STORE, _NARROW_FINISH = 16, 1.5
# Cycles of an output column for the loop, and for each register spill.
_COLUMN, _SPILL = 1.0, 2.0
# Cycles to test whether a pixel of a producer inside the loops is padding.
_PADDED_PIXEL = 4.0
# Fraction of L1 that data and accumulators of a tile may fill; beyond, they are in L2.
_L1_FILL = 0.75
# Registers for pixels and accumulators in flight.
_IN_FLIGHT = 4


def depthwise_dot_hints(form: DepthwiseForm, arch: CpuArch) -> list[Ranked[DepthwiseDotConfig]]:
    """Return the configurations of ``form`` with predicted cycles, unordered."""
    dot = find_tap_dot(arch, str(form.data.buffer.dtype))
    if dot is None:
        return []
    memory = WindowTraffic(form, arch, least_channels=_LINE)
    return [_rank(form, hint, dot, memory) for hint in _hints(form, dot, arch)]


def _hints(form: DepthwiseForm, dot: TapDot, arch: CpuArch) -> Iterator[DepthwiseDotConfig]:
    for tile in _tiles(form, dot):
        for order, parallel, depth in _loops(form, tile, arch):
            yield DepthwiseDotConfig(
                NAME,
                arch,
                register_tile=tile,
                loop_order=order,
                parallel_loops=parallel,
                producer_depth=depth,
                intrinsic=dot.name,
            )


def _tiles(form: DepthwiseForm, dot: TapDot) -> Iterator[tuple[int, ...]]:
    """Yield tiles that divide the output: few rows, many columns of the (transposed) image."""
    _, height, width, channels = form.extents
    transposed = form.kernel[1] == 1
    across, along = (width, height) if transposed else (height, width)
    for vectors in divisors(channels // dot.lanes, _LINE // dot.lanes):
        for rows in divisors(across, _MOST_ROWS):
            for columns in divisors(along, along):
                if columns < min(along, _FEWEST_COLUMNS):
                    continue
                image = (columns, rows) if transposed else (rows, columns)
                tile = (1, *image, vectors * dot.lanes)
                if math.prod(tile) * 4 <= _MOST_SCRATCH:
                    yield tile


def _loops(
    form: DepthwiseForm, tile: tuple[int, ...], arch: CpuArch
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield loop orders with the number of parallel loops and the depth of the padding."""
    trips = [extent // size for extent, size in zip(form.extents, tile, strict=True)]
    seen = set()
    for order in ((0, 1, 2, 3), (0, 1, 3, 2), (0, 3, 1, 2)):
        for parallel in _parallel_loops([trips[p] for p in order], arch.cores):
            depths = range(max(1, parallel), len(order)) if form.producers else ()
            for depth in (0, *depths):
                # Loops of one iteration make no difference.
                key = tuple(
                    tuple(p for p in part if trips[p] > 1)
                    for part in (order, order[:parallel], order[:depth])
                )
                if key not in seen:
                    seen.add(key)
                    yield order, parallel, depth


def _parallel_loops(trips: list[int], cores: int) -> list[int]:
    """Return numbers of parallel loops: none, and the fewest that occupy the cores."""
    if cores == 1 or math.prod(trips) == 1:
        return [0]
    depths = [depth for depth in range(1, len(trips) + 1) if math.prod(trips[:depth]) >= cores]
    return [0, *depths[:2]]


def _rank(
    form: DepthwiseForm, hint: DepthwiseDotConfig, dot: TapDot, memory: WindowTraffic
) -> Ranked[DepthwiseDotConfig]:
    """Return ``hint`` with predicted cycles and the cost model's intermediate values."""
    tile = shaped(form, hint.register_tile, dot)
    loops = TileLoops.of(hint, form.extents)
    vectors = hint.register_tile[-1] // dot.lanes
    compute, loads = _vector_cycles(tile, hint.arch)
    accumulators = tile.rows * tile.columns * vectors
    narrow = math.gcd(hint.register_tile[-1], _LINE) < _SHORT_STORE
    finish = accumulators * _FINISH * (_NARROW_FINISH if narrow else 1.0)
    one = memory.tile_cycles(vectors * compute, loops) + finish + vectors * _TILE
    data, scratch = max(memory.operands(hint.register_tile)), 4 * math.prod(hint.register_tile)
    if data + scratch > _L1_FILL * hint.arch.l1_bytes:
        one += ((vectors - 1) * data + 2 * scratch) / hint.arch.l2_bandwidth
    cycles = memory.all_tiles(one, loops) + memory.padding(loops, hint.producer_depth)
    copied, patch = memory.copied(loops, hint.producer_depth)
    if hint.producer_depth:
        pixels = copied / loops.span(hint.producer_depth)[-1]
        cycles += pixels * _PADDED_PIXEL / (hint.arch.cores if loops.parallel else 1)
    facts = (
        vectors * compute,
        loads,
        one,
        memory.misses(loops),
        memory.operand_bytes,
        loops.tasks / hint.arch.cores,
        patch,
        copied,
    )
    return Ranked(hint, cycles, facts)


def _vector_cycles(tile: DepthwiseTile, arch: CpuArch) -> tuple[float, float]:
    """Return the cycles and loads of a tile for one vector of channels."""
    dot = tile.dot
    dots = tile.rows * tile.kernel[0] * tile.words
    weights = tile.kernel[0] * tile.words
    free = arch.vector_registers - tile.input_rows * tile.held_words - _IN_FLIGHT
    loads = tile.input_rows * tile.loaded_pixels + (dots if free < weights else 0)
    windows = tile.input_rows * tile.window_uops(arch)
    column = max((windows + dots * dot.dot_uops) / arch.fma_ports, loads / arch.load_ports)
    column += _COLUMN + max(0, -free) * _SPILL
    before = tile.kernel[1] - tile.loaded_pixels
    first = before / tile.loaded_pixels * windows / arch.fma_ports
    return first + tile.columns * column, loads * tile.columns
