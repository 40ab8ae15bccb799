"""Configuration space of the AMX family, with predicted cycles."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from tvmopt.device.cpu import CACHE_LINE_BYTES, CpuArch
from tvmopt.kernels.cpu.common.contraction_cost import ContractionModel, ReductionSteps
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm
from tvmopt.kernels.cpu.common.loop_orders import loop_orders
from tvmopt.kernels.cpu.common.stage import divisors
from tvmopt.kernels.cpu.intrinsics import TileIntrinsic
from tvmopt.kernels.cpu.intrinsics.tile import COLUMNS, MOST_ROWS
from tvmopt.kernels.cpu.matrix_tile.config import NAME, MatrixTileConfig
from tvmopt.kernels.cpu.matrix_tile.schedule import shaped
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal

# Cache lines that tile loads read per cycle; cycles of overhead per reduction step and per block.
_LINES, _STEP, _BLOCK = 2.0, 4.0, 90.0
# Cycles to configure and release the tiles, in each call of a kernel. A convolution of one pixel,
# 88 to 22 channels, takes 2.5 us by AMX and 0.5 us in float32:
# benchmarks/results/2026-11-30-amx-10.md.
_CONFIGURE = 1500.0
# Relative time by tiles of rows and of columns. Two by two use all eight tile registers, so none
# can be loaded ahead. Fit, as the constants below, to 66 GEMMs and convolutions on an Emerald
# Rapids, 2 threads, see benchmarks/results/2026-11-29-amx-7.md.
_RELATIVE = {(1, 1): 1.0, (1, 2): 0.87, (2, 1): 0.85, (2, 2): 0.97}
# Share of L1 that data and weight of a block may fill; relative time that each doubling adds, and
# the most doublings. Beyond it, the tiles of the next block of columns read the data from L2 again.
_L1_SHARE, _BEYOND_L1, _MOST_DOUBLINGS = 0.7, 0.5, 2.0


def matrix_tile_hints(form: ContractionForm, arch: CpuArch) -> list[Ranked[MatrixTileConfig]]:
    """Return the configurations of ``form``, unordered; none if ``arch`` has no matrix tiles."""
    tile = form.tile(arch)
    if tile is None:
        return []

    model = ContractionModel(form, arch)
    shapes = ((hint, shaped(form, hint)) for hint in _hints(form, tile, arch))
    pixel_bytes = form.facts.axes[form.contiguous].extent * form.data.buffer.dtype.itemsize
    return [
        _ranked(model, hint, shape, shape.step * pixel_bytes)
        for hint, shape in shapes
        if not isinstance(shape, Refusal)
    ]


def _ranked(
    model: ContractionModel, hint: MatrixTileConfig, tile: TileIntrinsic, row_bytes: int
) -> Ranked[MatrixTileConfig]:
    """Return ``hint``, in blocks of ``tile``, with predicted cycles."""
    count = model.reduced // tile.block_k
    steps = ReductionSteps(count, step_cycles(tile, row_bytes) + _BLOCK / count)
    found = model.rank(hint, packs_weight=hint.packing == "runtime", unit=steps)
    factor = _RELATIVE[tile.row_blocks, tile.column_blocks]
    full = model.block_bytes(hint) / (_L1_SHARE * hint.arch.l1_bytes)
    factor *= 1 + _BEYOND_L1 * min(_MOST_DOUBLINGS, max(0.0, math.log2(full)))
    return dataclasses.replace(found, cycles=found.cycles * factor + _CONFIGURE)


def step_cycles(tile: TileIntrinsic, row_bytes: int = CACHE_LINE_BYTES) -> float:
    """Return the cycles of one reduction step: a tile multiply takes one per row, for any K.

    Args:
        tile: The block of tiles.
        row_bytes: Distance of the data's rows. A row that crosses the end of a cache line takes two
            loads: tiles whose rows are 16 bytes apart load in 1.7 times the time.
    """
    multiply = tile.row_blocks * tile.column_blocks * tile.rows
    crossing = max(0, tile.kbytes - math.gcd(row_bytes, CACHE_LINE_BYTES)) / CACHE_LINE_BYTES
    lines = tile.row_blocks * tile.rows * (1 + crossing)
    load = (lines + tile.column_blocks * tile.kbytes / 4) / _LINES
    return max(multiply, load) + _STEP


def _hints(form: ContractionForm, tile: TileIntrinsic, arch: CpuArch) -> Iterator[MatrixTileConfig]:
    facts = form.facts
    extents = form.extents
    rows = [facts.spatial.index(i) for i in form.rows]
    columns = [facts.spatial.index(i) for i in form.columns]
    for width in (2 * COLUMNS, COLUMNS):
        if width > extents[-1]:
            continue
        for sizes in _row_sizes(form, rows):
            block = [sizes.get(p, 1) for p in range(len(extents) - 1)] + [width]
            orders = loop_orders(extents, block, rows, columns, bool(form.producers), arch)
            for order, parallel, depth in orders:
                yield MatrixTileConfig(
                    NAME,
                    arch,
                    register_tile=tuple(block),
                    loop_order=order,
                    parallel_loops=parallel,
                    producer_depth=depth,
                    packing="prepacked" if form.constant else "runtime",
                    intrinsic=tile.name,
                )


def _row_sizes(form: ContractionForm, rows: list[int]) -> Iterator[dict[int, int]]:
    """Yield the rows of each axis in a block of tiles: rows of one image line, or of two.

    A count need not divide the rows of a line, see :mod:`.whole_blocks`.
    """
    size = {p: form.facts.axes[form.facts.spatial[p]].extent for p in rows}
    wide = [p for p in rows if size[p] > 1][-2:]
    if not wide:
        yield {}
        return
    inner = wide[-1]
    most = min(MOST_ROWS, size[inner])
    fewest_tiles = math.ceil(size[inner] / math.ceil(size[inner] / most))
    for count in sorted({*divisors(size[inner], MOST_ROWS)[-2:], fewest_tiles, most}):
        yield {inner: count}
        if 2 * count <= size[inner]:
            yield {inner: 2 * count}
        if len(wide) == 2:
            yield {wide[0]: 2, inner: count}
