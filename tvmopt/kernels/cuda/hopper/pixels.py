"""Pixel boxes: the tile rows of implicit-GEMM convolutions, and how they cover the output."""

from __future__ import annotations

import math
from typing import TypeAlias

from tvm import tirx
from tvm.ir import Expr

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.cost_constants import COSTS
from tvmopt.kernels.cuda.hopper.emit import quotient, remainder
from tvmopt.kernels.cuda.hopper.few_channels_problem import FewChannelsProblem
from tvmopt.kernels.cuda.hopper.output import Tiling
from tvmopt.kernels.cuda.hopper.problem import BYTES, ceil_div
from tvmopt.kernels.cuda.hopper.tile_scheduler import Tile
from tvmopt.kernels.cuda.hopper.tma import tensor_map
from tvmopt.kernels.workload import Refusal

_Problem: TypeAlias = ConvProblem | FewChannelsProblem


def boxes(problem: _Problem, rows: int) -> list[tuple[int, int, int]]:
    """Return boxes of ``rows`` pixels that tile the output, fastest predicted first.

    Returns:
        Images, rows and columns of each box.
    """
    high, wide = problem.out_size
    sh, sw = problem.stride
    found = []
    size = 1
    while size <= rows:
        inner = 1
        while size * inner <= rows:
            box = (rows // (size * inner), inner, size)
            if box[1] * sh <= 256 and box[2] * sw <= 256 and box[0] <= 256:
                used = (
                    ceil_div(problem.images, box[0])
                    * ceil_div(high, box[1])
                    * ceil_div(wide, box[2])
                )
                # Ties go to the squarest box: neighbouring boxes then share the least input.
                cycles = used * (COSTS.box_cycles_per_pixel + COSTS.box_cycles_per_row / box[2])
                found.append((cycles, abs(box[1] - box[2]) + 4 * box[0], box))
            inner *= 2
        size *= 2
    return [box for _, _, box in sorted(found)]


def why_no_box(
    problem: _Problem, config: HopperConfig, box: tuple[int, int, int]
) -> Refusal | None:
    """Return why a warpgroup cannot compute boxes of this shape; None where it can."""
    rows = config.warpgroup_m
    if math.prod(box) != rows:
        return Refusal(f"a pixel box has {rows} pixels, but {box} has {math.prod(box)}")
    sides = (box[0], box[1] * problem.stride[0], box[2] * problem.stride[1])
    if max(sides) > 256:
        return Refusal(f"a TMA box has at most 256 pixels a side, but the box spans {sides}")
    return None


def why_not(problem: _Problem, config: HopperConfig) -> Refusal | None:
    """Return why ``config`` cannot compute ``problem``; None where it can."""
    if config.swap_ab or config.multicast_size > 1 or config.split_k_workspace:
        return Refusal("a convolution has no swapped A and B, multicast, or workspace split-K")
    if config.split_k > 1 and (not config.smem_store or config.persistent):
        return Refusal("split-K of a convolution needs smem_store and one tile a thread block")
    if reason := config.why_not_dtype(problem.dtype):
        return reason
    if config.m_atoms not in (1, 2):
        return Refusal("a pixel box has 64 or 128 pixels")
    if config.split_k > 8 or problem.k_blocks < config.split_k:
        return Refusal(f"{problem.k_blocks} K blocks cannot be split by {config.split_k}")
    if not problem.weight_k_major and config.tile_n % 64:
        return Refusal("tile_n of an MN-major weight is a multiple of 64")
    if not config.smem_store:
        size = BYTES[problem.out]
        chunk = 128 // size
        if problem.filters * size % 16:
            return Refusal("TMA stores pixels of a multiple of 16 bytes")
        if config.tile_n % chunk or config.tile_n // chunk % config.epilogue_buffers:
            return Refusal(
                f"{config.tile_n} columns are not whole groups of {config.epilogue_buffers} x "
                f"{chunk}"
            )
    return None


class PixelTiling(Tiling):
    """Tiles of one pixel box for each consumer warpgroup."""

    def __init__(self, problem: _Problem, config: HopperConfig, box: tuple[int, int, int]) -> None:
        self._problem, self._config, self.box = problem, config, box
        high, wide = problem.out_size
        self._counts = (
            ceil_div(problem.images, box[0]),
            ceil_div(high, box[1]),
            ceil_div(wide, box[2]),
        )
        self.shape = (problem.images, high, wide, problem.filters)

    def tensor_map(self, buffer: tirx.Buffer, dtype: str) -> Expr:
        """Emit the TMA descriptor of a tensor of the output's shape, for pixel boxes."""
        p, size = self._problem, BYTES[dtype]
        high, wide = p.out_size
        line = p.filters * size
        return tensor_map(
            buffer,
            dtype,
            (p.filters, wide, high, p.images),
            (line, wide * line, high * wide * line),
            (128 // size, self.box[2], self.box[1], self.box[0]),
            promotion=0,
        )

    def extents(self) -> tuple[Expr | int, Expr | int]:
        """Return rows (of whole boxes) and columns of the implicit GEMM."""
        return math.prod(self._counts) * self._config.warpgroup_m, self._problem.filters

    def box_corner(self, index: Expr) -> tuple[Expr, Expr, Expr]:
        """Return first image, row and column of box ``index``."""
        _, down, across = self._counts
        n, h, w = self.box
        column = remainder(index, across) * w
        line = remainder(quotient(index, across), down) * h
        image = quotient(index, across * down) * n
        return image, line, column

    def place(
        self, tile: Tile, row: Expr, column: Expr
    ) -> tuple[list[Expr], list[tuple[Expr, Expr | int | None]]]:
        """Return image, row, column and channel of a tile element, with bounds to check."""
        p = self._problem
        _, h, w = self.box
        rows = self._config.warpgroup_m
        image, line, pixel = self.box_corner(quotient(row, rows))
        inside = remainder(row, rows)
        high, wide = p.out_size
        bounds = [
            # The last tile may hold boxes past the last one: their images are out of bounds.
            (image + quotient(inside, h * w), p.images),
            (line + remainder(quotient(inside, w), h), high if high % h else None),
            (pixel + remainder(inside, w), wide if wide % w else None),
            (column, p.filters if p.filters % self._config.tile_n else None),
        ]
        return [i for i, _ in bounds], bounds

    def corner(self, tile: Tile, warpgroup: Expr, first: int) -> list[Expr]:
        """Return the TMA coordinates of one warpgroup's epilogue tile: 128 bytes a pixel."""
        c = self._config
        index = tile.index * c.tile_warpgroups + c.part_of(warpgroup)
        image, line, column = self.box_corner(index)
        return [tile.column + first, column, line, image]
