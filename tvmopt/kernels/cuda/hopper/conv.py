"""Implicit-GEMM convolution for Hopper: TMA loads of pixel boxes, wgmma, NHWC.

M = images x height x width of the output, N = output channels, K = kernel taps x input channels.
The rows of a tile are boxes of output pixels (images x rows x columns). For each tap and each slice
of the input channels, TMA loads the box's pixels, shifted by the tap, with the stride as element
stride. Out-of-bounds pixels read as zero, which is the padding.

Images of few channels are packed first (:mod:`.few_channels_problem`); so are other images and
weights whose rows TMA cannot address (:mod:`.operand_copies`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import K_BLOCK_BYTES, HopperConfig, HopperConvConfig
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.emit import const, quotient, remainder, tensor_map, tma_load
from tvmopt.kernels.cuda.hopper.few_channels_kernel import LineKernel
from tvmopt.kernels.cuda.hopper.few_channels_problem import LineProblem
from tvmopt.kernels.cuda.hopper.operand_copies import Copies, pitch_of
from tvmopt.kernels.cuda.hopper.parameters import Parameters, declare, plain_signature
from tvmopt.kernels.cuda.hopper.pixels import PixelKernel, pixel_function
from tvmopt.kernels.cuda.hopper.problem import BYTES, KernelSignature, ceil_div
from tvmopt.kernels.cuda.hopper.shared_layout import SWIZZLE, Lines, blocks_of
from tvmopt.kernels.workload import Refusal


def conv(
    problem: ConvProblem, config: HopperConvConfig,
    name: str | None = "main", signature: KernelSignature | None = None,
) -> tirx.PrimFunc | Refusal:  # fmt: skip
    """Emit the kernel: a PrimFunc of the image, the weight, the epilogue's inputs, the output.

    Args:
        problem: The convolution.
        config: The configuration; the rows of a warpgroup are one pixel box.
        name: Global symbol of the PrimFunc; None for a private one.
        signature: Parameters of the PrimFunc; :func:`conv_signature` by default.

    Returns:
        The kernel; a refusal where there is none, or ``config`` does not fit.
    """
    tiled = problem.tiled

    def emit(box: tuple[int, int, int]) -> None:
        parameters = _copy(problem, declare(signature or conv_signature(problem)))
        if isinstance(tiled, LineProblem):
            LineKernel(tiled, config, box, parameters).emit()
        else:
            ConvKernel(problem, config, box, parameters).emit()

    return pixel_function(problem.refusal, tiled, config, name, emit)


def _copy(p: ConvProblem, parameters: Parameters) -> Parameters:
    """Emit the packing kernel; return the parameters with packed operands in place."""
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
        if p.packed[0]:
            image = copies.rows(parameters.a, p.images * p.height * p.width, p.channels)
        if p.packed[1] and p.weight_k_major and p.weight != "OHWI":
            pitch = pitch_of(p.channels, p.dtype)
            weight = copies.elements(
                parameters.b,
                kh * kw * p.channels * p.filters,
                p.filters * kh * kw * pitch,
                functools.partial(_turned_tap, p, pitch),
            )
        elif p.packed[1]:
            taps, row = (p.filters, p.channels) if p.weight_k_major else (p.channels, p.filters)
            weight = copies.rows(parameters.b, kh * kw * taps, row)
    copies.emit()
    return dataclasses.replace(
        parameters,
        a=parameters.a if image is None else copies.pointer(image),
        b=parameters.b if weight is None else copies.pointer(weight),
    )


def _tap(p: ConvProblem, lines: LineProblem, filled: int, item: Any) -> tuple[Any, Any]:
    """Map an element of the packed weight to its source index, and whether it is not padding."""
    kh, kw = p.kernel
    e, rest = remainder(item, lines.window), quotient(item, lines.window)
    r, o = remainder(rest, kh), quotient(rest, kh)
    s, c = quotient(e, filled), remainder(e, filled)
    there = tirx.all(s < kw, c < p.channels)
    if p.weight_k_major:
        return ((o * kh + r) * kw + s) * p.channels + c, there
    return ((r * kw + s) * p.channels + c) * p.filters + o, there


def conv_signature(problem: ConvProblem) -> KernelSignature:
    """Return the default parameters: image, weight, the epilogue's inputs, output."""
    p = problem
    (kh, kw), (high, wide) = p.kernel, p.out_size
    weight = {"O": p.filters, "H": kh, "W": kw, "I": p.channels}
    return plain_signature(
        ((p.images, p.height, p.width, p.channels), p.dtype),
        (tuple(weight[letter] for letter in p.weight), p.dtype),
        ((p.images, high, wide, p.filters), p.out),
        p.epilogue_or_cast(),
    )


def _turned_tap(p: ConvProblem, pitch: int, item: Any) -> tuple[Any, Any]:
    """Like :func:`_tap`, for a weight transposed to K-major with ``pitch`` channels."""
    taps = p.kernel[0] * p.kernel[1]
    c, rest = remainder(item, pitch), quotient(item, pitch)
    tap, o = remainder(rest, taps), quotient(rest, taps)
    return (tap * p.channels + c) * p.filters + o, c < p.channels


class ConvKernel(PixelKernel):
    """Implicit-GEMM main loop over kernel taps and slices of the input channels.

    Pixels of 32 or 64 bytes: a K block holds several taps. Pixels of more than 128 bytes: the
    channels are cut into equal slices.
    """

    def __init__(
        self, problem: ConvProblem, config: HopperConfig, box: tuple[int, int, int],
        parameters: Parameters,
    ) -> None:  # fmt: skip
        super().__init__(problem, config, box, parameters)
        p = self.problem = problem
        step = K_BLOCK_BYTES // BYTES[p.dtype]
        self.instructions = p.instructions
        kh, kw = p.kernel
        size = BYTES[p.dtype]
        sh, sw = p.stride
        pixel = pitch_of(p.channels, p.dtype) * size
        wide = step // p.fold
        # 1 x 1 kernel: the strides are in the descriptor's tensor; otherwise element strides.
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
        if p.weight_k_major:
            row = pixel // size
            # Taps are contiguous in one K axis, so that a K block may span several.
            depth = (taps * p.channels,) if p.fold > 1 else (p.channels, taps)
            self.w_map = tensor_map(
                parameters.b,
                p.dtype,
                (*depth, p.filters),
                (*((pixel,) if p.fold == 1 else ()), taps * row * size),
                (step, *((1,) if p.fold == 1 else ()), config.tile_n),
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
        """Return the layout of the left operand; each of several taps is a block of its own."""
        if self.problem.fold == 1:
            return super().left_lines()
        return blocks_of(K_BLOCK_BYTES // self.problem.fold, 64 * self.config.m_atoms)

    def load(self, slot: Any, step: Any, tile: Any) -> None:
        """Issue the TMA loads of a stage: a pixel box for each warpgroup, the weight's columns."""
        c, p = self.config, self.problem
        bar = self.full.pointer(slot)
        window, channel = step, const(0)
        if p.pieces > 1:
            each = p.instructions * 32 // BYTES[p.dtype]
            window = build.Bind(quotient(step, p.pieces))
            channel = build.Bind(remainder(step, p.pieces) * each)
        boxed = 64 * c.m_atoms * self.depth
        for group in range(c.consumer_warpgroups):
            corner = self.corner(tile.index * c.consumer_warpgroups + group)
            for f in range(p.fold):
                tap = step * p.fold + f if p.fold > 1 else window
                image, line, column = self._moved(corner, tap)
                place = self.left_ring.ptr_to([slot, group * boxed + f * (boxed // p.fold)])
                tma_load(place, self.x_map, [channel, column, line, image], bar)
        places = [step * self.depth] if p.fold > 1 else [channel, window]
        if p.weight_k_major:
            tma_load(self.right_ring.ptr_to([slot, 0]), self.w_map, [*places, tile.column], bar)
            return
        for i in range(c.tile_n // 64):
            tma_load(
                self.right_ring.ptr_to([slot, i * 64 * self.depth]),
                self.w_map,
                [tile.column + i * 64, *places],
                bar,
            )

    def _moved(self, corner: tuple[Any, Any, Any], tap: Any) -> tuple[Any, Any, Any]:
        """Return the TMA coordinates (image, row, column) of the box at ``corner`` for one tap."""
        p = self.problem
        image, line, column = corner
        if self.steps_in_map:
            return corner
        r, s = quotient(tap, p.kernel[1]), remainder(tap, p.kernel[1])
        taps = p.kernel[0] * p.kernel[1]
        if taps % p.fold:  # past the last tap: an image out of bounds reads as zeros
            image = tirx.Select(tap < taps, image, const(p.images))
        return (
            image,
            line * p.stride[0] + (r * p.dilation[0] - p.padding[0]),
            column * p.stride[1] + (s * p.dilation[1] - p.padding[1]),
        )
