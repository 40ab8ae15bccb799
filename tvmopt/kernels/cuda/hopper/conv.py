"""Convolutions on Hopper as products of matrices that are never written to memory.

The rows of a tile are boxes of output pixels (images x lines x columns). For each position of the
window and each piece of the input's channels, the copy engine loads the box's pixels, moved by that
position, with the stride as its step; what lies outside of the image is read as zero.

Images of few channels are copied first, as lines of pixels (:mod:`.lines`); other images, and
weights, where the copy engine cannot address their rows (:mod:`.copies`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import DEPTH_BYTES, Config
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.emit import const, quotient, remainder, tensor_map, tma_load
from tvmopt.kernels.cuda.hopper.few_channels_kernel import LineKernel
from tvmopt.kernels.cuda.hopper.few_channels_problem import LineProblem
from tvmopt.kernels.cuda.hopper.operand_copies import Copies, pitch_of
from tvmopt.kernels.cuda.hopper.parameters import Parameters, declare, plain_signature
from tvmopt.kernels.cuda.hopper.pixels import PixelKernel, pixel_function
from tvmopt.kernels.cuda.hopper.problem import BYTES, Signature, ceil_div
from tvmopt.kernels.cuda.hopper.shared_layout import SWIZZLE, Lines, blocks_of


def conv(
    problem: ConvProblem, config: Config, box: tuple[int, int, int] | None = None,
    name: str | None = "main", signature: Signature | None = None,
) -> tirx.PrimFunc:  # fmt: skip
    """The kernel: a function of the input, the weight, the epilogue's inputs, and the output.

    Args:
        problem: What to compute.
        config: How; ``atoms * 64`` rows are one box of pixels.
        box: Images, lines and columns of a box; the one that wastes least by default.
        name: The function's global symbol; None for a private one.
        signature: The function's parameters, where they are others than those.

    Raises:
        ConfigError: When there is no such kernel, or ``config`` does not fit.
    """
    tiled = problem.tiled

    def emit(box: tuple[int, int, int]) -> None:
        parameters = _copy(problem, declare(signature or conv_signature(problem)))
        if isinstance(tiled, LineProblem):
            LineKernel(tiled, config, box, parameters).emit()
        else:
            ConvKernel(problem, config, box, parameters).emit()

    return pixel_function(problem.why_not, tiled, config, box, name, emit)


def _copy(p: ConvProblem, parameters: Parameters) -> Parameters:
    """Emit the copies; the parameters with these in place of what was copied."""
    copies = Copies(p.dtype)
    (kh, kw), lines = p.kernel, p.lines
    image = weight = None
    if lines is not None:
        filled = lines.pixel // p.stride[1]
        image = copies.image(
            parameters.a, (p.images, p.height, p.width, p.channels),
            (p.images, lines.height, lines.width), filled, p.padding[:2],
        )  # fmt: skip
        weight = copies.elements(
            parameters.b,
            kh * kw * p.channels * p.filters,
            p.filters * lines.lines * lines.window,
            functools.partial(_tap, p, lines, filled),
        )
    else:
        if p.copied[0]:
            image = copies.rows(parameters.a, p.images * p.height * p.width, p.channels)
        if p.copied[1] and p.right_major and p.weight != "OHWI":
            pitch = pitch_of(p.channels, p.dtype)
            weight = copies.elements(
                parameters.b,
                kh * kw * p.channels * p.filters,
                p.filters * kh * kw * pitch,
                functools.partial(_turned_tap, p, pitch),
            )
        elif p.copied[1]:
            taps, row = (p.filters, p.channels) if p.right_major else (p.channels, p.filters)
            weight = copies.rows(parameters.b, kh * kw * taps, row)
    copies.emit()
    return dataclasses.replace(
        parameters,
        a=parameters.a if image is None else copies.pointer(image),
        b=parameters.b if weight is None else copies.pointer(weight),
    )


def _tap(p: ConvProblem, lines: LineProblem, filled: int, item: Any) -> tuple[Any, Any]:
    """Which element of the weight an element of the copy is, and whether there is one."""
    kh, kw = p.kernel
    e, rest = remainder(item, lines.window), quotient(item, lines.window)
    r, o = remainder(rest, kh), quotient(rest, kh)
    s, c = quotient(e, filled), remainder(e, filled)
    there = tirx.all(s < kw, c < p.channels)
    if p.right_major:
        return ((o * kh + r) * kw + s) * p.channels + c, there
    return ((r * kw + s) * p.channels + c) * p.filters + o, there


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


def _turned_tap(p: ConvProblem, pitch: int, item: Any) -> tuple[Any, Any]:
    """The same of a weight that is copied along the depth, with ``pitch`` channels."""
    taps = p.kernel[0] * p.kernel[1]
    c, rest = remainder(item, pitch), quotient(item, pitch)
    tap, o = remainder(rest, taps), quotient(rest, taps)
    return (tap * p.channels + c) * p.filters + o, c < p.channels


class ConvKernel(PixelKernel):
    """A convolution: the window's elements one after the other, and pieces of the channels.

    A step holds several elements of the window where pixels are of 32 or 64 bytes; where they are
    of more than 128, pieces that are alike.
    """

    def __init__(
        self, problem: ConvProblem, config: Config, box: tuple[int, int, int],
        parameters: Parameters,
    ) -> None:  # fmt: skip
        super().__init__(problem, config, box, parameters)
        p = self.problem = problem
        step = DEPTH_BYTES // BYTES[p.dtype]
        self.instructions = p.instructions
        kh, kw = p.kernel
        size = BYTES[p.dtype]
        sh, sw = p.stride
        pixel = pitch_of(p.channels, p.dtype) * size
        wide = step // p.fold
        # A window of one pixel: its steps are the tensor's own; else the copy engine takes them.
        self.steps_in_map = p.kernel == (1, 1) and not any(p.padding[:2])
        if self.steps_in_map:
            self.x_map = tensor_map(
                parameters.a,
                p.dtype,
                (p.channels, ceil_div(p.width, sw), ceil_div(p.height, sh), p.images),
                (sw * pixel, sh * p.width * pixel, p.height * p.width * pixel),
                (wide, box[2], box[1], box[0]),
            )
        else:
            self.x_map = tensor_map(
                parameters.a,
                p.dtype,
                (p.channels, p.width, p.height, p.images),
                (pixel, p.width * pixel, p.height * p.width * pixel),
                (wide, box[2] * sw, box[1] * sh, box[0]),
                steps=(1, sw, sh, 1),
                swizzle=SWIZZLE[wide * size],
            )
        taps = kh * kw
        if p.right_major:
            row = pixel // size
            # The elements of the window follow each other, so that a step may hold several.
            depth = (taps * p.channels,) if p.fold > 1 else (p.channels, taps)
            self.w_map = tensor_map(
                parameters.b,
                p.dtype,
                (*depth, p.filters),
                (*((pixel,) if p.fold == 1 else ()), taps * row * size),
                (step, *((1,) if p.fold == 1 else ()), config.columns),
            )
        else:
            row = pitch_of(p.filters, p.dtype) * size
            depth = (taps * p.channels,) if p.fold > 1 else (p.channels, taps)
            self.w_map = tensor_map(
                parameters.b,
                p.dtype,
                (p.filters, *depth),
                (row, *((p.channels * row,) if p.fold == 1 else ())),
                (64, step, *((1,) if p.fold == 1 else ())),
            )
        self.maps += [self.x_map, self.w_map]

    def left_lines(self) -> Lines:
        """Of several elements of the window each is a block of its own."""
        if self.problem.fold == 1:
            return super().left_lines()
        return blocks_of(DEPTH_BYTES // self.problem.fold, 64 * self.config.atoms)

    def load(self, slot: Any, step: Any, tile: Any) -> None:
        """Fill one stage: a box of pixels for each warpgroup, and the weight's columns."""
        c, p = self.config, self.problem
        bar = self.full.pointer(slot)
        window, channel = step, const(0)
        if p.pieces > 1:
            each = p.instructions * 32 // BYTES[p.dtype]
            window = build.Bind(quotient(step, p.pieces))
            channel = build.Bind(remainder(step, p.pieces) * each)
        boxed = 64 * c.atoms * self.depth
        for group in range(c.consumers):
            corner = self.corner(tile.index * c.consumers + group)
            for f in range(p.fold):
                tap = step * p.fold + f if p.fold > 1 else window
                image, line, column = self._moved(corner, tap)
                place = self.left_ring.ptr_to([slot, group * boxed + f * (boxed // p.fold)])
                tma_load(place, self.x_map, [channel, column, line, image], bar)
        places = [step * self.depth] if p.fold > 1 else [channel, window]
        if p.right_major:
            tma_load(self.right_ring.ptr_to([slot, 0]), self.w_map, [*places, tile.column], bar)
            return
        for i in range(c.columns // 64):
            tma_load(
                self.right_ring.ptr_to([slot, i * 64 * self.depth]),
                self.w_map,
                [tile.column + i * 64, *places],
                bar,
            )

    def _moved(self, corner: tuple[Any, Any, Any], tap: Any) -> tuple[Any, Any, Any]:
        """Where the box that begins at ``corner`` is read for one element of the window."""
        p = self.problem
        image, line, column = corner
        if self.steps_in_map:
            return corner
        r, s = quotient(tap, p.kernel[1]), remainder(tap, p.kernel[1])
        taps = p.kernel[0] * p.kernel[1]
        if taps % p.fold:  # beyond the last element: images that there are not, read as zeros
            image = tirx.Select(tap < taps, image, const(p.images))
        return (
            image,
            line * p.stride[0] + (r * p.dilation[0] - p.padding[0]),
            column * p.stride[1] + (s * p.dilation[1] - p.padding[1]),
        )
