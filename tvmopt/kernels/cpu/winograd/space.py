"""Configuration space of the Winograd family, with predicted cycles."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.prefetch_distance import bytes_ahead
from tvmopt.kernels.cpu.common.stage import divisors
from tvmopt.kernels.cpu.winograd.config import NAME, WinogradConfig
from tvmopt.kernels.cpu.winograd.cost import WinogradModel
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
                            prefetch_bytes=bytes_ahead(vectors, arch),
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
