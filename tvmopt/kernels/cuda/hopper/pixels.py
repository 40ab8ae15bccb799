"""Implicit-GEMM kernels whose tile rows are pixels: how pixels form boxes and where they go."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.errors import ConfigError
from tvmopt.kernels.cuda.hopper.config import Config
from tvmopt.kernels.cuda.hopper.emit import quotient, remainder, tensor_map
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue
from tvmopt.kernels.cuda.hopper.mainloop import Kernel
from tvmopt.kernels.cuda.hopper.parameters import Parameters, mark
from tvmopt.kernels.cuda.hopper.problem import BYTES, ceil_div


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
    def right_major(self) -> bool:
        """Whether the weight is K-major."""

    def ending(self) -> Epilogue:
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


def why_no_box(problem: PixelProblem, config: Config, box: tuple[int, int, int]) -> str | None:
    """Return why a warpgroup cannot compute boxes of this shape; None where it can."""
    rows = 64 * config.atoms
    if math.prod(box) != rows:
        return f"a box of pixels has {rows}, but {box} has {math.prod(box)}"
    sides = (box[0], box[1] * problem.stride[0], box[2] * problem.stride[1])
    if max(sides) > 256:
        return f"the copy engine loads 256 pixels each way at most, but the box spans {sides}"
    return None


def why_not(problem: PixelProblem, config: Config) -> str | None:
    """Return why ``config`` cannot compute ``problem``; None where it can."""
    if config.swap or config.sharers > 1 or config.apart:
        return "a convolution neither exchanges operands nor shares loads, nor divides depth apart"
    if config.split > 1 and (not config.staged or config.persistent):
        return "a divided depth needs staged stores and one tile a block"
    if reason := config.why_not_any(problem.dtype):
        return reason
    if config.atoms not in (1, 2):
        return "a box of pixels has 64 or 128"
    if config.split > 8 or problem.steps < config.split:
        return f"a depth of {problem.steps} steps cannot be divided by {config.split}"
    if not problem.right_major and config.columns % 64:
        return "columns that are not contiguous along the depth come 64 at a time"
    if not config.staged:
        size = BYTES[problem.out]
        chunk = 128 // size
        if problem.filters * size % 16:
            return "the copy engine stores pixels of a multiple of 16 bytes"
        if config.columns % chunk or config.columns // chunk % config.buffers:
            return f"{config.columns} columns are not whole groups of {config.buffers} x {chunk}"
    return None


def pixel_function(
    impossible: str | None, problem: PixelProblem, config: Config,
    box: tuple[int, int, int] | None, name: str | None,
    emit: Callable[[tuple[int, int, int]], None],
) -> tirx.PrimFunc:  # fmt: skip
    """Build the PrimFunc of a convolution kernel.

    Args:
        impossible: Why no kernel computes the convolution, or None.
        problem: The problem that is tiled into pixel boxes.
        config: The configuration; ``atoms * 64`` rows are one pixel box.
        box: Images, rows and columns of a box; by default the fastest by :func:`boxes`.
        name: Global symbol of the PrimFunc; None for a private one.
        emit: Emits the parameters and the kernel for a box.

    Raises:
        ConfigError: When no kernel computes the convolution, or ``config`` does not fit.
    """
    if impossible:
        raise ConfigError(f"no Hopper kernel for this convolution: {impossible}")
    box = box or boxes(problem, 64 * config.atoms)[0]
    if reason := why_not(problem, config) or why_no_box(problem, config, box):
        raise ConfigError(f"the configuration does not fit the convolution: {reason}")
    with IRBuilder() as builder, build.prim_func(is_private=name is None):
        build.func_name(name or "main")
        mark(name, "hopper_conv")
        emit(box)
    return builder.get()


class PixelKernel(Kernel):
    """Main loop over pixel boxes; one box for each consumer warpgroup of a tile."""

    def __init__(
        self, problem: PixelProblem, config: Config, box: tuple[int, int, int],
        parameters: Parameters,
    ) -> None:  # fmt: skip
        p = problem
        super().__init__(config, p.dtype, p.out, p.steps, p.ending(), parameters)
        self.pixels = p
        self.box = box
        high, wide = p.out_size
        self.counts = tuple(
            ceil_div(e, b) for e, b in zip((p.images, high, wide), box, strict=True)
        )
        self.right_major = p.right_major
        self.out_shape = (p.images, high, wide, p.filters)
        self.maps = []
        if not config.staged:
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
        return a * b * c * 64 * self.config.atoms, self.pixels.filters

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
        rows = 64 * self.config.atoms
        image, line, pixel = self.corner(quotient(row, rows))
        inside = remainder(row, rows)
        high, wide = p.out_size
        bounds: list[tuple[Any, Any]] = [
            # The last tile may hold boxes past the last one: their images are out of bounds.
            (image + quotient(inside, h * w), p.images),
            (line + remainder(quotient(inside, w), h), high if high % h else None),
            (pixel + remainder(inside, w), wide if wide % w else None),
        ]
        bounds.append((column, p.filters if p.filters % self.config.columns else None))
        return [i for i, _ in bounds], bounds

    def corner_of(self, tile: Any, group: Any, first: int) -> list[Any]:
        """Return the TMA coordinates of one warpgroup's epilogue tile: 128 bytes a pixel."""
        image, line, column = self.corner(tile.index * self.config.consumers + group)
        return [tile.column + first, column, line, image]
