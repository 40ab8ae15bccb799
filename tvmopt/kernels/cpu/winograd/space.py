"""Configuration space of the Winograd family, with predicted cycles."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.cost import (
    COPY,
    LAUNCH,
    REMOTE,
    TileNumbers,
    bandwidth,
    imbalance,
    tile_cost,
)
from tvmopt.kernels.cpu.common.prefetch_rules import bytes_ahead
from tvmopt.kernels.cpu.common.stage import divisors
from tvmopt.kernels.cpu.winograd.config import NAME, WinogradConfig
from tvmopt.kernels.cpu.winograd.schedule import WinogradForm, channel_vector
from tvmopt.kernels.ranked import Ranked

_MOST_VECTORS = 4


def winograd_hints(form: WinogradForm, arch: CpuArch) -> list[Ranked[WinogradConfig]]:
    """Return the configurations of ``form`` with predicted cycles, unordered."""
    model = WinogradModel(form, arch)
    return [model.rank(hint) for hint in _hints(form, arch)]


def _hints(form: WinogradForm, arch: CpuArch) -> Iterator[WinogradConfig]:
    tiles_y, tiles_x, outputs = form.extents
    vector = channel_vector(outputs, arch.lanes(form.facts.dtype))
    for vectors in divisors(outputs // vector, _MOST_VECTORS):
        width = vectors * vector
        for rows in _row_blocks(tiles_y, tiles_x, vectors, arch):
            for l2_block in _l2_blocks(form, rows, width):
                count = form.batch * math.prod(
                    math.ceil(e / t) for e, t in zip(form.extents, l2_block, strict=True)
                )
                one = l2_block[2] == outputs or count == outputs // l2_block[2]
                for order in ((0, 1, 2),) if one else ((0, 1, 2), (2, 0, 1)):
                    for depth in (0, 1):
                        yield WinogradConfig(
                            NAME,
                            arch,
                            register_tile=(*rows, width),
                            loop_order=order,
                            parallel_loops=int(arch.cores > 1),
                            producer_depth=depth,
                            l2_block=l2_block,
                            packing="prepacked" if form.constant else "none",
                            prefetch_bytes=bytes_ahead(math.prod(rows), vectors, arch),
                        )


def _row_blocks(
    tiles_y: int, tiles_x: int, vectors: int, arch: CpuArch
) -> Iterator[tuple[int, int]]:
    """Yield register-tile rows as (tiles along y, tiles along x) that fit the registers."""
    most = max(1, (arch.vector_registers - 1 - vectors) // vectors)
    for x in divisors(tiles_x, most) or [1]:
        for y in range(1, min(tiles_y, most // x) + 1):
            idle = math.ceil(tiles_y / y) * y - tiles_y
            if 2 * x * y >= min(most, tiles_x * tiles_y) and 4 * idle <= tiles_y:
                yield y, x


def _l2_blocks(
    form: WinogradForm, rows: tuple[int, int], width: int
) -> Iterator[tuple[int, int, int]]:
    """Yield L2 blocks as (tiles along y, tiles along x, output channels)."""
    tiles_y, tiles_x, outputs = form.extents
    tall = sorted({min(tiles_y, rows[0] * k) for k in (1, 2, 4, 8)} | {tiles_y})
    wide = {tiles_x} | {
        x for x in (tiles_x // 2, tiles_x // 4) if x >= rows[1] and tiles_x % x == 0 and x > 7
    }
    deep = [width * k for k in divisors(outputs // width, outputs) if _few(k, outputs // width)]
    for y in tall:
        for x in wide:
            for o in deep:
                yield y, x, o


def _few(part: int, whole: int) -> bool:
    """Return whether ``part`` is 1, or ``whole`` divided by 1, 2, 4 or 8."""
    return part == 1 or whole // part in (1, 2, 4, 8)


# Cycles of the input and output transforms for one vector of one tile, by m.
_INPUT_TRANSFORM, _OUTPUT_TRANSFORM = {2: 40.0, 4: 130.0}, {2: 30.0, 4: 100.0}
# Cycles of overhead per L2 block (loops, buffers).
_BLOCK = 500.0


class WinogradModel:
    """Cost model for the configurations of one Winograd convolution.

    Args:
        form: The normalised function.
        arch: The CPU.
    """

    def __init__(self, form: WinogradForm, arch: CpuArch) -> None:
        self._form, self._arch = form, arch
        self._lanes = arch.lanes(form.facts.dtype)
        self._vector = channel_vector(form.extents[2], self._lanes)
        self._itemsize = form.facts.reads[0].buffer.dtype.itemsize
        self._out_itemsize = form.facts.write.buffer.dtype.itemsize
        dot = form.dot(arch)
        self._steps = form.channels // (dot.depth if dot else 1)
        self._points = (form.m + 2) ** 2

    def rank(self, hint: WinogradConfig) -> Ranked[WinogradConfig]:
        """Return ``hint`` with predicted cycles and the cost model's intermediate values."""
        form, arch, points, size = self._form, self._arch, self._points, self._itemsize
        tiles_y, tiles_x, outputs = form.extents
        y, x, o = hint.l2_block
        grid = form.batch * math.ceil(tiles_y / y) * math.ceil(tiles_x / x)
        blocks = grid * (outputs // o)
        cores = arch.cores if hint.parallel_loops else 1
        busy = imbalance(blocks, cores)
        # Bytes of one L2 block: transformed data, GEMM output, weight.
        data = points * y * x * form.channels * size
        gemm_output = points * y * x * o * self._out_itemsize
        weights = points * form.channels * o * size
        gemm, between = self._gemm(hint, blocks, data, gemm_output, busy)
        reads = self._weights(hint, blocks / cores, data + gemm_output, weights)
        output_transform = blocks * y * x * (o / self._vector) * _OUTPUT_TRANSFORM[form.m]
        output_transform += blocks * 2 * gemm_output / bandwidth(gemm_output, arch)
        input_transform, extra = self._data(hint, grid, blocks, data)
        shared = output_transform + input_transform + blocks * _BLOCK
        total = gemm + (reads + shared / cores) * busy + extra
        facts = (
            gemm,
            between,
            reads,
            output_transform,
            input_transform,
            data + gemm_output,
            weights,
            blocks / cores,
        )
        return Ranked(hint, total, facts)

    def _gemm(
        self, hint: WinogradConfig, blocks: int, data: float, gemm_output: float, busy: float
    ) -> tuple[float, float]:
        """Return the GEMM cycles of the busiest core, and the weight's reuse distance in bytes."""
        form, arch, size = self._form, self._arch, self._itemsize
        y, x, o = hint.l2_block
        by, bx, width = hint.register_tile
        passes = math.ceil(y / by) * math.ceil(x / bx)
        slab = form.channels * width * size
        one_point = data / self._points
        between = slab + one_point
        tile = TileNumbers(
            rows=by * bx,
            vectors=width // self._vector,
            depth=self._steps,
            tiles=blocks * self._points * passes * (o // width),
            weight_block=slab,
            weight_reuse=between,
            weight_uses=passes,
            spills=0,
            data_block=by * bx * form.channels * size,
            data_reuse=between if hint.producer_depth else data / max(1, arch.cores),
            out_bytes=by * bx * width * self._out_itemsize,
            out_run=width * self._out_itemsize,
            out_total=gemm_output * arch.cores,
            imbalance=busy,
            parallel=hint.parallel_loops > 0,
            inner=self._steps,
            guarded=y % by != 0 or x % bx != 0,
        )
        # The first read of the weight per L2 block is in _weights.
        cost = tile_cost(tile, arch)
        first = tile.tiles * slab / arch.l3_bandwidth / passes
        return cost.total - first * busy / (arch.cores if hint.parallel_loops else 1), between

    def _weights(self, hint: WinogradConfig, blocks: float, others: float, weights: float) -> float:
        """Return one core's cycles for the first read of the weight in each of its L2 blocks."""
        arch = self._arch
        whole = weights * (self._form.extents[2] // hint.l2_block[2])
        if hint.loop_order[0] == 2:  # blocks of the same output channels in sequence
            cores = arch.cores if hint.parallel_loops else 1
            once = min(blocks, max(1.0, (self._form.extents[2] // hint.l2_block[2]) / cores))
            again = max(0.0, blocks - once)
            between = weights + others
        else:
            once = min(blocks, float(self._form.extents[2] // hint.l2_block[2]))
            again = max(0.0, blocks - once)
            between = whole + others
        return weights * (once / arch.l3_bandwidth + again / bandwidth(between, arch))

    def _data(
        self, hint: WinogradConfig, grid: int, blocks: int, data: float
    ) -> tuple[float, float]:
        """Return the input transform's cycles on all cores, and extra cycles of a separate pass."""
        form, arch = self._form, self._arch
        tiles_y, tiles_x, _ = form.extents
        y, x, _ = hint.l2_block
        vectors = form.channels / channel_vector(form.channels, self._lanes)
        if hint.producer_depth:
            tiles, rows, wide, times = y * x, y, x, blocks
        else:
            tiles, rows, wide, times = tiles_y * tiles_x, form.batch * tiles_y, tiles_x, 1
            tiles *= form.batch
        input_transform = times * tiles * vectors * _INPUT_TRANSFORM[form.m]
        strip = (form.m + 2) * (wide * form.m + 2) * form.channels * self._itemsize
        input_transform += times * rows * strip / COPY
        input_transform += times * data / bandwidth(data, arch) if hint.producer_depth else 0.0
        if hint.producer_depth:
            return input_transform, 0.0
        cores = arch.cores if hint.parallel_loops else 1
        whole = data * grid
        remote = 0.0
        if cores > 1 and (hint.loop_order[0] == 2 or grid < cores):
            remote = whole * (cores - 1) / cores / REMOTE
        share = imbalance(form.batch * tiles_y, cores)
        extra = whole / cores / bandwidth(whole / cores, arch) + LAUNCH * (cores > 1) + remote
        return 0.0, input_transform * share / cores + extra
