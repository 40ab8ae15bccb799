"""Tile scheduler: the rasterisation order of output tiles.

A GPU has groups of SMs (GPCs). A GPC reads a line from L2 once if several of its SMs want it at
about the same time. Consecutive thread blocks run in one GPC (read from ``%smid`` on an H200;
thread block clusters go to the GPCs in turn).
"""

from __future__ import annotations

import functools
from typing import Any

from tvm.script import tirx as T  # noqa: N812

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import quotient, remainder
from tvmopt.kernels.cuda.hopper.problem import ceil_div

#: Raster group heights, in rows of tiles.
RASTER_GROUPS: tuple[int, ...] = (8, 4, 2, 1)
# Columns of tiles up to which the order is row by row.
_FEW_COLUMNS = 4
# SMs of a GPC, and GPCs.
_NEIGHBOURS, _GROUPS = 16, 8


def tile_of(number: Any, down: Any, across: Any, group: int) -> tuple[Any, Any]:
    """Return row and column of a tile: raster groups of ``group`` rows, column-major inside.

    Order for ``group`` = 2::

         0  2  4  6  8
         1  3  5  7  9
        10 12 ...

    With few columns the order is row-major: consecutive tiles run on neighbouring SMs, which read
    a common operand tile once.

    Args:
        number: Linear tile index; an expression, or an int like the next two.
        down: Number of rows of tiles.
        across: Number of columns of tiles.
        group: Height of a raster group.
    """
    if isinstance(down, int):
        group = min(group, down)
        if across <= _FEW_COLUMNS and across < down:
            group = 1
    if group <= 1:
        return quotient(number, across), remainder(number, across)
    span = across * group
    first, inner = quotient(number, span) * group, remainder(number, span)
    rows: Any = group
    if not isinstance(down, int) or down % group:
        left = down - first
        rows = min(group, left) if isinstance(left, int) else T.min(T.int32(group), left)
    return first + remainder(inner, rows), quotient(inner, rows)


@functools.cache
def lines_read(tile: tuple[int, int], down: int, across: int, raster: int) -> int:
    """Return how many operand lines of one K block the GPCs read from L2 in the first wave.

    Args:
        tile: Rows and columns of a tile.
        down: Number of rows of tiles.
        across: Number of columns of tiles.
        raster: Height of a raster group.
    """
    count = min(down * across, _NEIGHBOURS * _GROUPS)
    total = 0
    for size in (_NEIGHBOURS // 2, _NEIGHBOURS):  # half GPCs have their own path: count both
        for first in range(0, count, size):
            numbers = range(first, min(count, first + size))
            places = [tile_of(number, down, across, raster) for number in numbers]
            total += len({row for row, _ in places}) * tile[0]
            total += len({column for _, column in places}) * tile[1]
    return total


def ranked_raster_groups(config: HopperConfig, rows: int, columns: int) -> tuple[int, ...]:
    """Return the raster group heights, fewest L2 reads first.

    Of heights with equally many reads only the largest is returned; with a thread block cluster,
    only the largest of all.

    Args:
        config: The configuration.
        rows: Rows of the tiled problem.
        columns: Columns of the tiled problem.
    """
    if config.cluster_size > 1:
        return RASTER_GROUPS[:1]
    down, across = ceil_div(rows, config.tile_m), ceil_div(columns, config.tile_n)
    read: dict[int, int] = {}
    for raster in RASTER_GROUPS:
        read.setdefault(lines_read((config.tile_m, config.tile_n), down, across, raster), raster)
    return tuple(raster for _, raster in sorted(read.items()))
