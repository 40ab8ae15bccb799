"""Implicit-GEMM kernels whose tile rows are pixels: how pixels form boxes and where they go."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import HopperConfig, HopperConvConfig
from tvmopt.kernels.cuda.hopper.emit import quotient, remainder, tensor_map
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue
from tvmopt.kernels.cuda.hopper.mainloop import Kernel
from tvmopt.kernels.cuda.hopper.parameters import Parameters, mark
from tvmopt.kernels.cuda.hopper.problem import BYTES, ceil_div
from tvmopt.kernels.workload import Refusal


class PixelProblem(Protocol):
    """Common interface of the problems with NHWC output."""

    @property
    def images(self) -> int:
        """Batch size."""

    @property
    def filters(self) -> int:
        """Output channels."""

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""

    @property
    def stride(self) -> tuple[int, int]:
        """Stride of the input box, in elements of the TMA box."""

    @property
    def steps(self) -> int:
        """K blocks."""

    @property
    def dtype(self) -> str:
        """Dtype of image and weight."""

    @property
    def out(self) -> str:
        """Output dtype."""

    @property
    def weight_k_major(self) -> bool:
        """Whether the weight is K-major."""

    def epilogue_or_cast(self) -> Epilogue:
        """Return the epilogue."""


def boxes(problem: PixelProblem, rows: int) -> list[tuple[int, int, int]]:
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
                # About 8 cycles to load and multiply a pixel, and 1 to start an image row. Ties
                # go to the squarest box: neighbouring boxes then share the least input.
                cycles = used * (8 + 1 / box[2])
                found.append((cycles, abs(box[1] - box[2]) + 4 * box[0], box))
            inner *= 2
        size *= 2
    return [box for _, _, box in sorted(found)]


def why_no_box(
    problem: PixelProblem, config: HopperConfig, box: tuple[int, int, int]
) -> Refusal | None:
    """Return why a warpgroup cannot compute boxes of this shape; None where it can."""
    rows = config.warpgroup_m
    if math.prod(box) != rows:
        return Refusal(f"a pixel box has {rows} pixels, but {box} has {math.prod(box)}")
    sides = (box[0], box[1] * problem.stride[0], box[2] * problem.stride[1])
    if max(sides) > 256:
        return Refusal(f"a TMA box has at most 256 pixels a side, but the box spans {sides}")
    return None


def why_not(problem: PixelProblem, config: HopperConfig) -> Refusal | None:
    """Return why ``config`` cannot compute ``problem``; None where it can."""
    if config.swap_ab or config.multicast_size > 1 or config.split_k_workspace:
        return Refusal("a convolution has no swapped A and B, multicast, or workspace split-K")
    if config.split_k > 1 and (not config.smem_store or config.persistent):
        return Refusal("split-K of a convolution needs smem_store and one tile a thread block")
    if reason := config.why_not_dtype(problem.dtype):
        return reason
    if config.m_atoms not in (1, 2):
        return Refusal("a pixel box has 64 or 128 pixels")
    if config.split_k > 8 or problem.steps < config.split_k:
        return Refusal(f"{problem.steps} K blocks cannot be split by {config.split_k}")
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


def pixel_function(
    impossible: Refusal | None, problem: PixelProblem, config: HopperConvConfig, name: str | None,
    emit: Callable[[tuple[int, int, int]], None],
) -> tirx.PrimFunc | Refusal:  # fmt: skip
    """Build the PrimFunc of a convolution kernel.

    Args:
        impossible: Why no kernel computes the convolution, or None.
        problem: The problem that is tiled into pixel boxes.
        config: The configuration; the rows of a warpgroup are one pixel box.
        name: Global symbol of the PrimFunc; None for a private one.
        emit: Emits the parameters and the kernel for a box.

    Returns:
        The kernel; a refusal where there is none, or ``config`` does not fit.
    """
    if reason := impossible or why_not(problem, config):
        return reason
    box = config.pixel_box or boxes(problem, config.warpgroup_m)[0]
    if reason := why_no_box(problem, config, box):
        return reason
    with IRBuilder() as builder, build.prim_func(is_private=name is None):
        build.func_name(name or "main")
        mark(name, "hopper_conv")
        emit(box)
    return builder.get()


class PixelKernel(Kernel):
    """Main loop over pixel boxes; one box for each consumer warpgroup of a tile."""

    def __init__(
        self, problem: PixelProblem, config: HopperConfig, box: tuple[int, int, int],
        parameters: Parameters,
    ) -> None:  # fmt: skip
        p = problem
        super().__init__(config, p.dtype, p.out, p.steps, p.epilogue_or_cast(), parameters)
        self.pixels = p
        self.box = box
        high, wide = p.out_size
        self.counts = tuple(
            ceil_div(e, b) for e, b in zip((p.images, high, wide), box, strict=True)
        )
        self.right_major = p.weight_k_major
        self.out_shape = (p.images, high, wide, p.filters)
        self.maps = []
        if not config.smem_store:
            self.out_map = self._map_of(self.out, p.out)
            self.maps += [self.out_map, *self._load_residual_ahead(self._map_of)]

    def _map_of(self, buffer: Any, dtype: str) -> Any:
        """Return the TMA descriptor of a tensor that has the shape of the output."""
        p, size = self.pixels, BYTES[dtype]
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

    def extents(self) -> tuple[Any, Any]:
        """Return rows (of whole boxes) and columns of the implicit GEMM."""
        a, b, c = self.counts
        return a * b * c * 64 * self.config.m_atoms, self.pixels.filters

    def corner(self, index: Any) -> tuple[Any, Any, Any]:
        """Return first image, row and column of box ``index``."""
        _, down, across = self.counts
        n, h, w = self.box
        column = remainder(index, across) * w
        line = remainder(quotient(index, across), down) * h
        image = quotient(index, across * down) * n
        return image, line, column

    def place(self, tile: Any, row: Any, column: Any) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """Return image, row, column and channel of a tile element, with bounds to check."""
        p = self.pixels
        _, h, w = self.box
        rows = 64 * self.config.m_atoms
        image, line, pixel = self.corner(quotient(row, rows))
        inside = remainder(row, rows)
        high, wide = p.out_size
        bounds: list[tuple[Any, Any]] = [
            # The last tile may hold boxes past the last one: their images are out of bounds.
            (image + quotient(inside, h * w), p.images),
            (line + remainder(quotient(inside, w), h), high if high % h else None),
            (pixel + remainder(inside, w), wide if wide % w else None),
        ]
        bounds.append((column, p.filters if p.filters % self.config.tile_n else None))
        return [i for i, _ in bounds], bounds

    def corner_of(self, tile: Any, group: Any, first: int) -> list[Any]:
        """Return the TMA coordinates of one warpgroup's epilogue tile: 128 bytes a pixel."""
        image, line, column = self.corner(tile.index * self.config.consumer_warpgroups + group)
        return [tile.column + first, column, line, image]
