"""Tile scheduler: which output tile is next, and which part of K; the rasterisation order.

A GPU has groups of SMs (GPCs). A GPC reads a line from L2 once if several of its SMs want it at
about the same time. Consecutive thread blocks run in one GPC (read from ``%smid`` on an H200;
thread block clusters go to the GPCs in turn).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import (
    Number,
    Scalar,
    Threads,
    const,
    held,
    quotient,
    remainder,
    sync_cluster_relaxed,
)
from tvmopt.kernels.cuda.hopper.multicast import Multicast
from tvmopt.kernels.cuda.hopper.problem import ceil_div

#: Raster group heights, in rows of tiles.
RASTER_GROUPS: tuple[int, ...] = (8, 4, 2, 1)
# Columns of tiles up to which the order is row by row.
_ROW_MAJOR_MAX_COLUMNS = 4


@dataclasses.dataclass(frozen=True)
class Tile:
    """An output tile.

    Attributes:
        row: First row.
        column: First column.
        batch: Batch index in the output; with split-K through workspace that of the partial result.
        operand_batch: Batch index in the operands.
        index: Index of the tile along the rows.
    """

    row: Expr
    column: Expr
    batch: Expr
    operand_batch: Expr
    index: Expr


class TileScheduler:
    """Grid of the kernel, and the tiles of each thread block.

    A persistent kernel has as many clusters as are resident; each visits every
    tile whose index is congruent to its own. With split-K through workspace, each K slice is a
    batch entry.

    Args:
        config: Tile, cluster, split-K, rasterisation.
        extents: Rows and columns of the tiled problem, int32.
        k_blocks: K blocks of the whole reduction.
        batch: Batch extent of the problem.
    """

    def __init__(
        self,
        config: HopperConfig,
        extents: tuple[Expr | int, Expr | int],
        k_blocks: int,
        batch: int,
    ) -> None:
        c = self._config = config
        rows, columns = extents
        self._k_blocks = k_blocks
        self._batch = batch
        self._slices = c.split_k if c.split_k_workspace else 1
        self._down = _tiles(rows, c.tile_m * c.cluster_m)
        self._across = _tiles(columns, c.tile_n * c.cluster_n)
        self._per_batch = self._down * self._across
        self._total = self._per_batch * (batch * self._slices)
        self._clusters = c.resident_clusters
        if isinstance(self._total, int):
            self._clusters = min(self._total, self._clusters) if c.persistent else self._total

    def launch(self) -> Threads:
        """Emit the grid and the thread indices."""
        c = self._config
        if c.cluster_size == 1:
            self._first, self._rank = T.cta_id([self._clusters]), const(0)
        else:
            self._first = held(T.cluster_id([self._clusters]))
            self._rank = held(T.cta_id_in_cluster([c.cluster_size]))
        self._multicast = Multicast(c, self._rank)
        return Threads(
            warpgroup=T.warpgroup_id([c.consumer_warpgroups + 1]),
            warp=T.warp_id_in_wg([4]),
            lane=T.lane_id([32]),
            thread=T.thread_id_in_wg([128]),
            rank=self._rank,
        )

    def sync_blocks(self) -> None:
        """Emit a barrier of the cluster, or of the thread block without one."""
        if self._config.cluster_size > 1:
            sync_cluster_relaxed()
        else:
            build.evaluate(T.cuda.cta_sync())

    @contextmanager
    def tiles(self, warpgroup: Expr | None = None) -> Iterator[Tile]:
        """Emit the body once for each tile of the thread block.

        Args:
            warpgroup: With ping-pong, the consumer warpgroup whose tiles these are: of the tiles of
                the thread block it has every second one.
        """
        if not self._config.persistent:
            yield self._tile(self._first)
            return
        first, step = self._first, self._clusters
        if warpgroup is not None:
            first, step = first + warpgroup * step, step * self._config.consumer_warpgroups
        number = Scalar("int32", first)
        with build.While(number.value < self._total):
            yield self._tile(number.value)
            number.set(number.value + step)

    def _tile(self, number: Expr) -> Tile:
        c, batch, batched = self._config, const(0), self._batch * self._slices > 1
        inner = remainder(number, self._per_batch) if batched else number
        if batched:
            batch = quotient(number, self._per_batch)
        i, j = tile_of(inner, self._down, self._across, c.raster_group)
        i, j = i * c.cluster_m + self._multicast.cta_m, j * c.cluster_n + self._multicast.cta_n
        i, j, batch = held(i), held(j), held(batch)
        row, column = held(i * c.tile_m), held(j * c.tile_n)
        own = remainder(batch, self._batch) if self._slices > 1 else batch
        return Tile(row, column, batch, own, i)

    def k_range(self, tile: Tile) -> tuple[Expr, Expr]:
        """Return the first K block of this thread block, and its number of K blocks."""
        split, steps = self._config.split_k, self._k_blocks
        if split == 1:
            return const(0), const(steps)
        part = quotient(tile.batch, self._batch) if self._slices > 1 else self._rank
        first = held(quotient(part * steps, split))
        return first, held(quotient((part + 1) * steps, split) - first)


def _tiles(extent: Expr | int, tile: int) -> Expr | int:
    if isinstance(extent, int):
        return ceil_div(extent, tile)
    return quotient(extent + (tile - 1), tile)


def tile_of(number: Number, down: Expr | int, across: Expr | int, group: int) -> tuple[Any, Any]:
    """Return row and column of a tile: raster groups of ``group`` rows, column-major inside.

    Order for ``group`` = 2::

         0  2  4  6  8
         1  3  5  7  9
        10 12 ...

    With few columns the order is row-major: consecutive tiles run on neighbouring SMs, which read
    a common operand tile once.

    Args:
        number: Linear tile index; an expression, or an int like the next two, or an array of them.
        down: Number of rows of tiles.
        across: Number of columns of tiles.
        group: Height of a raster group.
    """
    if isinstance(down, int):
        group = min(group, down)
        if across <= _ROW_MAJOR_MAX_COLUMNS and across < down:
            group = 1
    if group <= 1:
        return quotient(number, across), remainder(number, across)
    span = across * group
    first, inner = quotient(number, span) * group, remainder(number, span)
    rows: Number = group
    if not isinstance(down, int) or down % group:
        left = down - first
        if isinstance(left, np.ndarray):
            rows = np.minimum(group, left)
        else:
            rows = min(group, left) if isinstance(left, int) else T.min(T.int32(group), left)
    return first + remainder(inner, rows), quotient(inner, rows)


def lines_read(arch: CudaArch, tile: tuple[int, int], down: int, across: int, raster: int) -> int:
    """Return how many operand lines of one K block the GPCs read from L2 in the first wave.

    Args:
        arch: The GPU.
        tile: Rows and columns of a tile.
        down: Number of rows of tiles.
        across: Number of columns of tiles.
        raster: Height of a raster group.
    """
    rows, columns = _tiles_read(arch.gpc_sms, arch.gpcs, down, across, raster)
    return rows * tile[0] + columns * tile[1]


@functools.cache
def _tiles_read(gpc_sms: int, gpcs: int, down: int, across: int, raster: int) -> tuple[int, int]:
    """Return how many rows and columns of tiles the GPCs read, each GPC for itself."""
    numbers = np.arange(min(down * across, gpc_sms * gpcs))
    row, column = tile_of(numbers, down, across, raster)
    rows = columns = 0
    for size in (gpc_sms // 2, gpc_sms):  # half GPCs have their own path: count both
        gpc = numbers // size
        rows += np.unique(gpc * down + row).size
        columns += np.unique(gpc * across + column).size
    return rows, columns


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
        tile = config.tile_m, config.tile_n
        read.setdefault(lines_read(config.arch, tile, down, across, raster), raster)
    return tuple(raster for _, raster in sorted(read.items()))
