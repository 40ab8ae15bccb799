"""The order of tiles: what is computed at about the same time, and by which multiprocessors.

A GPU has groups of multiprocessors (GPCs) that read from L2 once what several of them want at about
the same time. Thread blocks one after the other are neighbours there (read from ``%smid`` on an
H200; clusters are dealt to the groups in turn).
"""

from __future__ import annotations

import functools
from typing import Any

from tvm.script import tirx as T  # noqa: N812

from tvmopt.kernels.cuda.hopper.config import Config
from tvmopt.kernels.cuda.hopper.emit import quotient, remainder
from tvmopt.kernels.cuda.hopper.problem import ceil_div

#: Rows of tiles that may be computed side by side.
RASTERS: tuple[int, ...] = (8, 4, 2, 1)
# Columns of tiles up to which those of a row follow each other.
_FEW_COLUMNS = 4
# Multiprocessors of a group, and how many groups there are.
_NEIGHBOURS, _GROUPS = 16, 8


def tile_of(number: Any, down: Any, across: Any, group: int) -> tuple[Any, Any]:
    """Row and column of a tile: groups of ``group`` rows of tiles, in each column by column.

    Where there are few columns, those of a row follow each other: neighbouring numbers run on
    neighbouring multiprocessors, which read what both want once.

    Args:
        number: The tile's number; an expression, or a number as the next two.
        down: How many rows of tiles there are.
        across: How many columns.
        group: Rows of a group.
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
    """Lines of a step that groups of multiprocessors read from L2 for the first tiles.

    Args:
        tile: Rows and columns of a tile.
        down: How many rows of tiles there are.
        across: How many columns.
        raster: Rows of tiles that are computed side by side.
    """
    count = min(down * across, _NEIGHBOURS * _GROUPS)
    total = 0
    for size in (_NEIGHBOURS // 2, _NEIGHBOURS):  # halves of a group have a way of their own
        for first in range(0, count, size):
            numbers = range(first, min(count, first + size))
            places = [tile_of(number, down, across, raster) for number in numbers]
            total += len({row for row, _ in places}) * tile[0]
            total += len({column for _, column in places}) * tile[1]
    return total


def ranked_rasters(config: Config, rows: int, columns: int) -> tuple[int, ...]:
    """Rows of tiles that may be computed side by side; that of which fewest lines are read first.

    One of those that are alike; where thread blocks share loads, the most.

    Args:
        config: How tiles are computed.
        rows: Rows of the whole.
        columns: Columns of it.
    """
    if config.together > 1:
        return RASTERS[:1]
    down, across = ceil_div(rows, config.rows), ceil_div(columns, config.columns)
    read: dict[int, int] = {}
    for raster in RASTERS:
        read.setdefault(lines_read((config.rows, config.columns), down, across, raster), raster)
    return tuple(raster for _, raster in sorted(read.items()))
