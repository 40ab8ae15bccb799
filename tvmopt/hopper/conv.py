"""Convolutions on Hopper as products of matrices that are never written to memory.

The rows of a tile are boxes of output pixels (images x lines x columns). For each position of the
window and each piece of the input's channels, the copy engine loads the box's pixels, moved by that
position, with the stride as its step; what lies outside of the image is read as zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tvm import tirx
from tvm.script import tirx as T  # noqa: N812
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.errors import ConfigError

from .config import DEPTH_BYTES, INT8_COLUMNS, Config
from .emit import tensor_map, tma_load, tma_store
from .epilogue import Epilogue, identity
from .mainloop import Kernel
from .parameters import Parameters, declare, mark, plain_signature
from .problem import BYTES, OUTPUTS, Signature, ceil_div


@dataclasses.dataclass(frozen=True)
class ConvProblem:
    """``y[n, h, w, o] = epilogue(sum_rsc x[n, h*sh - ph + r*dh, w*sw - pw + s*dw, c] * k)``.

    Attributes:
        images: Images of the batch.
        height: Lines of the input.
        width: Pixels of a line.
        channels: Channels of the input.
        filters: Channels of the output.
        kernel: Lines and columns of the window.
        stride: Steps of the window, down and across.
        padding: Zeros around the input: top, left, bottom, right.
        dilation: Distance between the window's elements, down and across.
        dtype: Type of input and weight.
        out: Type of the output.
        weight: Layout of the weight: ``"OHWI"`` or ``"HWIO"``.
        epilogue: What is stored in place of the sum; its axes are those of the output (NHWC).
    """

    images: int
    height: int
    width: int
    channels: int
    filters: int
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    dtype: str = "float16"
    out: str = "float16"
    weight: str = "OHWI"
    epilogue: Epilogue | None = None

    @property
    def accumulator(self) -> str:
        """Type of the sums."""
        return "int32" if self.dtype == "int8" else "float32"

    @property
    def out_size(self) -> tuple[int, int]:
        """Lines and columns of the output."""
        (kh, kw), (sh, sw), (dh, dw) = self.kernel, self.stride, self.dilation
        top, left, bottom, right = self.padding
        return (
            (self.height + top + bottom - dh * (kh - 1) - 1) // sh + 1,
            (self.width + left + right - dw * (kw - 1) - 1) // sw + 1,
        )

    def ending(self) -> Epilogue:
        """The epilogue, or the one that stores the sum itself."""
        return self.epilogue or identity(self.accumulator, self.out, rank=4)

    @property
    def why_not(self) -> str | None:
        """Why no kernel of this family computes it; None where one does."""
        if self.dtype not in OUTPUTS or self.out not in OUTPUTS[self.dtype]:
            return f"{self.dtype} to {self.out} is no pair of types of the tensor cores"
        if self.weight not in ("OHWI", "HWIO"):
            return f"the weight must be OHWI or HWIO, but is {self.weight}"
        size = BYTES[self.dtype]
        if size == 1 and self.weight != "OHWI":
            return "8-bit weights must be contiguous along the input's channels"
        if self.channels * size % 16:
            return (
                "the copy engine needs pixels of a multiple of 16 bytes, but those of the input "
                f"have {self.channels * size}"
            )
        if self.weight == "HWIO" and self.filters * size % 16:
            return f"the weight's rows must be a multiple of 16 bytes, not {self.filters * size}"
        if min(self.images, self.height, self.width, self.channels, self.filters) < 1:
            return "every extent must be at least 1"
        if min(self.out_size) < 1:
            return "the window is larger than the padded input"
        if max(self.stride) > 8:
            return f"the copy engine's step is at most 8, but the stride is {self.stride}"
        return None


def boxes(problem: ConvProblem, rows: int) -> list[tuple[int, int, int]]:
    """Ways to cut the output into boxes of ``rows`` pixels, those that waste least first.

    Returns:
        Images, lines and columns of a box.
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
                # Of those that waste alike, the squarest: neighbours share most of what they read.
                found.append((used, abs(box[1] - box[2]) + 4 * box[0], box))
            inner *= 2
        size *= 2
    return [box for _, _, box in sorted(found)]


def conv(
    problem: ConvProblem, config: Config, box: tuple[int, int, int] | None = None,
    name: str = "main", signature: Signature | None = None,
) -> tirx.PrimFunc:  # fmt: skip
    """The kernel: a function of the input, the weight, the epilogue's inputs, and the output.

    Args:
        problem: What to compute.
        config: How; ``atoms * 64`` rows are one box of pixels.
        box: Images, lines and columns of a box; the one that wastes least by default.
        name: The function's global symbol.
        signature: The function's parameters, where they are others than those.

    Raises:
        ConfigError: When there is no such kernel, or ``config`` does not fit.
    """
    if reason := problem.why_not:
        raise ConfigError(f"no Hopper kernel for this convolution: {reason}")
    if reason := why_not(problem, config):
        raise ConfigError(f"the configuration does not fit the convolution: {reason}")
    with IRBuilder() as builder:
        with build.prim_func():
            build.func_name(name)
            mark(name, "hopper_conv")
            parameters = declare(signature or conv_signature(problem))
            box = box or boxes(problem, 64 * config.atoms)[0]
            ConvKernel(problem, config, box, parameters).emit()
    return builder.get()


def conv_signature(problem: ConvProblem) -> Signature:
    """The image, the weight, the epilogue's inputs, the output."""
    p = problem
    (kh, kw), (high, wide) = p.kernel, p.out_size
    weight = {"O": p.filters, "H": kh, "W": kw, "I": p.channels}
    return plain_signature(
        ((p.images, p.height, p.width, p.channels), p.dtype),
        (tuple(weight[letter] for letter in p.weight), p.dtype),
        ((p.images, high, wide, p.filters), p.out),
        p.ending(),
    )


def why_not(problem: ConvProblem, config: Config) -> str | None:
    """Why ``config`` cannot compute ``problem``; None where it can."""
    if config.swap or config.cluster > 1:
        return "a convolution neither exchanges operands nor shares loads"
    if config.split > 1 and (not config.staged or config.persistent):
        return "a divided depth needs staged stores and one tile a block"
    if reason := config.why_too_large():
        return reason
    if config.stages < 2:
        return "a ring has at least two stages"
    if problem.dtype == "int8" and config.columns not in INT8_COLUMNS:
        return f"the integer instruction has no {config.columns} columns"
    if config.atoms not in (1, 2):
        return "a box of pixels has 64 or 128"
    if config.split > 1:
        steps = problem.kernel[0] * problem.kernel[1]
        steps *= ceil_div(problem.channels * BYTES[problem.dtype], DEPTH_BYTES)
        if config.split > 8 or steps < config.split:
            return f"a depth of {steps} steps cannot be divided by {config.split}"
    if problem.weight == "HWIO" and config.columns % 64:
        return "columns that are not contiguous along the depth come 64 at a time"
    if not config.staged:
        size = BYTES[problem.out]
        chunk = 128 // size
        if problem.filters * size % 16:
            return "the copy engine stores pixels of a multiple of 16 bytes"
        if config.columns % chunk or config.columns // chunk % config.buffers:
            return f"{config.columns} columns are not whole groups of {config.buffers} x {chunk}"
    return None


class ConvKernel(Kernel):
    """The main loop over boxes of pixels."""

    def __init__(
        self, problem: ConvProblem, config: Config, box: tuple[int, int, int],
        parameters: Parameters,
    ) -> None:  # fmt: skip
        p = problem
        step = DEPTH_BYTES // BYTES[p.dtype]
        self.pieces = ceil_div(p.channels, step)
        steps = p.kernel[0] * p.kernel[1] * self.pieces
        super().__init__(config, p.dtype, p.out, steps, p.ending(), parameters)
        self.problem = problem
        self.box = box
        high, wide = p.out_size
        self.counts = tuple(
            ceil_div(e, b) for e, b in zip((p.images, high, wide), box, strict=True)
        )
        self.right_major = p.weight == "OHWI"
        kh, kw = p.kernel
        self.out_shape = (p.images, high, wide, p.filters)
        size = BYTES[p.dtype]
        sh, sw = p.stride
        line = p.channels * size
        # A window of one pixel: its steps are the tensor's own; else the copy engine takes them.
        self.steps_in_map = p.kernel == (1, 1) and not any(p.padding[:2])
        if self.steps_in_map:
            self.x_map = tensor_map(
                parameters.a,
                p.dtype,
                (p.channels, ceil_div(p.width, sw), ceil_div(p.height, sh), p.images),
                (sw * line, sh * p.width * line, p.height * p.width * line),
                (step, box[2], box[1], box[0]),
            )
        else:
            self.x_map = tensor_map(
                parameters.a,
                p.dtype,
                (p.channels, p.width, p.height, p.images),
                (line, p.width * line, p.height * p.width * line),
                (step, box[2] * sw, box[1] * sh, box[0]),
                steps=(1, sw, sh, 1),
            )
        if self.right_major:
            self.w_map = tensor_map(
                parameters.b,
                p.dtype,
                (p.channels, kh * kw, p.filters),
                (line, kh * kw * line),
                (step, 1, config.columns),
            )
        else:
            line = p.filters * size
            self.w_map = tensor_map(
                parameters.b,
                p.dtype,
                (p.filters, p.channels, kh * kw),
                (line, p.channels * line),
                (64, step, 1),
            )
        if not config.staged:
            size = BYTES[p.out]
            line = p.filters * size
            self.y_map = tensor_map(
                self.out,
                p.out,
                (p.filters, wide, high, p.images),
                (line, wide * line, high * wide * line),
                (128 // size, box[2], box[1], box[0]),
                promotion=0,
            )
        self.maps = [self.x_map, self.w_map, *([] if config.staged else [self.y_map])]

    def extents(self) -> tuple[Any, Any]:
        """Rows (of whole boxes) and columns."""
        a, b, c = self.counts
        return a * b * c * 64 * self.config.atoms, self.problem.filters

    def corner(self, index: Any) -> tuple[Any, Any, Any]:
        """First image, line and column of box ``index``."""
        _, down, across = self.counts
        n, h, w = self.box
        column = index % across * w
        line = index // across % down * h
        image = index // (across * down) * n
        return image, line, column

    def load(self, slot: Any, step: Any, tile: Any, rank: Any) -> None:
        """Fill one stage: a box of pixels for each warpgroup, and the weight's columns."""
        c, p = self.config, self.problem
        bar = self.full.pointer(slot)
        window = build.Bind(step // self.pieces) if self.pieces > 1 else step
        channel = build.Bind(step % self.pieces * self.depth) if self.pieces > 1 else T.int32(0)
        r, s = window // p.kernel[1], window % p.kernel[1]
        for group in range(c.consumers):
            image, line, column = self.corner(tile.index * c.consumers + group)
            if not self.steps_in_map:
                column = column * p.stride[1] + (s * p.dilation[1] - p.padding[1])
                line = line * p.stride[0] + (r * p.dilation[0] - p.padding[0])
            tma_load(
                self.left_ring.ptr_to([slot, group * 64 * c.atoms * self.depth]),
                self.x_map,
                [channel, column, line, image],
                bar,
            )
        if self.right_major:
            tma_load(
                self.right_ring.ptr_to([slot, 0]), self.w_map, [channel, window, tile.column], bar
            )
            return
        for i in range(c.columns // 64):
            tma_load(
                self.right_ring.ptr_to([slot, i * 64 * self.depth]),
                self.w_map,
                [tile.column + i * 64, channel, window],
                bar,
            )

    def place(self, tile: Any, row: Any, column: Any) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """Image, line, column and channel of a row and a column of the tile."""
        p = self.problem
        n, h, w = self.box
        rows = 64 * self.config.atoms
        corner = self.corner(row // rows)
        inside = row % rows
        offsets = (inside // (h * w), inside // w % h, inside % w)
        extents = (p.images, *p.out_size)
        bounds: list[tuple[Any, Any]] = []
        for start, offset, extent, box in zip(corner, offsets, extents, self.box, strict=True):
            # Whole tiles may hold boxes beyond the last, whose image is out of range.
            ragged = extent % box or extent is p.images
            bounds.append((start + offset, extent if ragged else None))
        bounds.append((column, p.filters if p.filters % self.config.columns else None))
        return [i for i, _ in bounds], bounds

    def store_box(self, tile: Any, group: Any, chunk: int, source: Any) -> None:
        """Send the box of one warpgroup, 128 bytes of each pixel, out."""
        image, line, column = self.corner(tile.index * self.config.consumers + group)
        first = tile.column + chunk * (128 // BYTES[self.problem.out])
        tma_store(self.y_map, [first, column, line, image], source)
