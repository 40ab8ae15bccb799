"""Convolutions on Hopper as products of matrices that are never written to memory.

The rows of a tile are boxes of output pixels (images x lines x columns). For each position of the
window and each piece of the input's channels, the copy engine loads the box's pixels, moved by that
position, with the stride as its step; what lies outside of the image is read as zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.errors import ConfigError

from .config import DEPTH_BYTES, Config
from .emit import const, quotient, remainder, tensor_map, tma_load
from .epilogue import Epilogue, identity
from .parameters import Parameters, declare, mark, plain_signature
from .pixels import PixelKernel, boxes, why_not
from .problem import BYTES, MOST_ELEMENTS, OUTPUTS, Signature, ceil_div


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
    def steps(self) -> int:
        """Steps of the depth: of the window, and of the channels."""
        pieces = ceil_div(self.channels * BYTES[self.dtype], DEPTH_BYTES)
        return self.kernel[0] * self.kernel[1] * pieces

    @property
    def right_major(self) -> bool:
        """Whether the weight is contiguous along the depth."""
        return self.weight == "OHWI"

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
        high, wide = self.out_size
        if self.images * high * wide * self.filters > MOST_ELEMENTS:
            return "the output has more than 2**31 - 1 elements"
        if max(self.stride) > 8:
            return f"the copy engine's step is at most 8, but the stride is {self.stride}"
        return None


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
    if reason := problem.why_not:
        raise ConfigError(f"no Hopper kernel for this convolution: {reason}")
    if reason := why_not(problem, config):
        raise ConfigError(f"the configuration does not fit the convolution: {reason}")
    with IRBuilder() as builder, build.prim_func(is_private=name is None):
        build.func_name(name or "main")
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



class ConvKernel(PixelKernel):
    """A convolution: the window's elements one after the other, and pieces of the channels."""

    def __init__(
        self, problem: ConvProblem, config: Config, box: tuple[int, int, int],
        parameters: Parameters,
    ) -> None:  # fmt: skip
        super().__init__(problem, config, box, parameters)
        p = self.problem = problem
        step = DEPTH_BYTES // BYTES[p.dtype]
        self.pieces = ceil_div(p.channels, step)
        kh, kw = p.kernel
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
        self.maps += [self.x_map, self.w_map]

    def load(self, slot: Any, step: Any, tile: Any, rank: Any) -> None:
        """Fill one stage: a box of pixels for each warpgroup, and the weight's columns."""
        c, p = self.config, self.problem
        bar = self.full.pointer(slot)
        window, channel = step, const(0)
        if self.pieces > 1:
            window = build.Bind(quotient(step, self.pieces))
            channel = build.Bind(remainder(step, self.pieces) * self.depth)
        r, s = quotient(window, p.kernel[1]), remainder(window, p.kernel[1])
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
