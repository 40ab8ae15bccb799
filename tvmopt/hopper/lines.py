"""Convolutions of images of few channels, such as a network's first: whole lines of the window.

The pixels under one line of the window lie side by side, so that the copy engine can read them as
one row; rows of neighbouring outputs overlap. Several lines of the window, loaded together, make
one step of the depth. The image must be padded before (:mod:`tvmopt.hopper.few_channels`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.errors import ConfigError

from .config import DEPTH_BYTES, Config
from .emit import const, tensor_map, tma_load
from .epilogue import Epilogue, identity
from .parameters import Parameters, declare, mark, plain_signature
from .pixels import PixelKernel, boxes, why_no_box, why_not
from .problem import BYTES, MOST_ELEMENTS, OUTPUTS, Signature, ceil_div
from .stage_layout import SWIZZLE, Lines, blocks_of

# Channels up to which an image is laid out anew: from 8 on, its own pixels are 16 bytes.
_MOST_CHANNELS = 7


@dataclasses.dataclass(frozen=True)
class LineProblem:
    """``y[n, h, w, o] = epilogue(sum_pfe x[n, h*s + p*fold + f, w*pixel + e] * k[o, p, f, e])``.

    Attributes:
        images: Images of the batch.
        height: Lines of the padded input.
        width: Elements of a line of the padded input.
        filters: Channels of the output.
        out_size: Lines and columns of the output.
        groups: Steps of the depth: groups of lines of the window (extent of ``p``).
        fold: Lines of a group (extent of ``f``).
        window: Elements of a line of the window (extent of ``e``), 16, 32 or 64;
            ``fold * window`` elements are 128 bytes.
        step: Lines between neighbouring lines of the output (``s``).
        pixel: Elements between neighbouring columns of the output.
        dtype: Type of input and weight, of 16 bits.
        out: Type of the output.
        epilogue: What is stored in place of the sum; its axes are those of the output (NHWC).
        together: Pixels of a convolution's output, side by side, that one of these pixels is: its
            channels are theirs in turn. Their windows overlap, so that less is loaded.
        used: Elements of the window that are not zero in every filter; 0 for all.
    """

    images: int
    height: int
    width: int
    filters: int
    out_size: tuple[int, int]
    groups: int
    fold: int
    window: int
    step: int
    pixel: int
    dtype: str = "float16"
    out: str = "float16"
    epilogue: Epilogue | None = None
    together: int = 1
    used: int = 0

    #: The weight is contiguous along the depth.
    right_major = True

    @property
    def accumulator(self) -> str:
        """Type of the sums."""
        return "float32"

    @property
    def steps(self) -> int:
        """Steps of the depth."""
        return self.groups

    @property
    def instructions(self) -> int:
        """Instructions of a step, each of 32 bytes of depth."""
        if self.fold > 1 or not self.used:
            return DEPTH_BYTES // 32
        return ceil_div(self.used * 2, 32)

    @property
    def stride(self) -> tuple[int, int]:
        """Lines, and places of the window, between neighbouring pixels of the output."""
        return self.step, 1

    def ending(self) -> Epilogue:
        """The epilogue, or the one that stores the sum itself."""
        return self.epilogue or identity(self.accumulator, self.out, rank=4)

    @property
    def why_not(self) -> str | None:
        """Why no kernel of this family computes it; None where one does."""
        if BYTES.get(self.dtype) != 2 or self.out not in OUTPUTS[self.dtype]:
            return f"{self.dtype} to {self.out} is no pair of types of 16-bit factors"
        if self.fold * self.window * 2 != DEPTH_BYTES:
            return f"a step of the depth must be 128 bytes, not {self.fold * self.window * 2}"
        if self.window * 2 not in SWIZZLE:
            return f"a line of the window must be 16, 32 or 64 elements, not {self.window}"
        if self.width * 2 % 16 or self.pixel * 2 % 16:
            return "the copy engine needs lines, and steps of the window, of multiples of 16 bytes"
        high, wide = self.out_size
        if (high - 1) * self.step + self.groups * self.fold > self.height:
            return "the window reaches beyond the last line"
        if (wide - 1) * self.pixel + self.window > self.width:
            return "the window reaches beyond the end of a line"
        if self.images * high * wide * self.filters > MOST_ELEMENTS:
            return "the output has more than 2**31 - 1 elements"
        if self.images * self.height * self.width > MOST_ELEMENTS:
            return "the padded input has more than 2**31 - 1 elements"
        if not 1 <= self.step <= 8:
            return f"the copy engine's step is at most 8, but the stride is {self.step}"
        return None


def line_problem(
    images: int, height: int, width: int, channels: int, filters: int, kernel: tuple[int, int],
    stride: tuple[int, int], padding: tuple[int, int, int, int], dtype: str, out: str,
    together: int = 1,
) -> LineProblem | None:  # fmt: skip
    """The convolution as lines of pixels; None where that does not pay or cannot be.

    Args:
        images: Images of the batch.
        height: Lines of an image.
        width: Pixels of a line.
        channels: Channels of the image.
        filters: Channels of the output.
        kernel: Lines and columns of the window.
        stride: Steps of the window, down and across.
        padding: Zeros around the image: top, left, bottom, right.
        dtype: Type of image and weight.
        out: Type of the output.
        together: Pixels of the output, side by side, that are computed as one.
    """
    if BYTES.get(dtype) != 2 or channels > _MOST_CHANNELS:
        return None
    (kh, kw), (sh, sw) = kernel, stride
    top, left, bottom, right = padding
    high = (height + top + bottom - kh) // sh + 1
    wide = (width + left + right - kw) // sw + 1
    step = DEPTH_BYTES // 2
    filled = next(c for c in (1, 2, 4, 8) if c >= channels and together * sw * c % 8 == 0)
    used = (kw + (together - 1) * sw) * filled
    window = next((e for e in (16, 32, 64) if e >= used), None)
    if window is None or min(high, wide) < 1 or wide % together:
        return None
    fold = step // window
    groups = ceil_div(kh, fold)
    pixel = together * sw * filled
    problem = LineProblem(
        images=images,
        height=(high - 1) * sh + groups * fold,
        width=ceil_div((wide // together - 1) * pixel + window, 8) * 8,
        filters=filters * together,
        out_size=(high, wide // together),
        groups=groups,
        fold=fold,
        window=window,
        step=sh,
        pixel=pixel,
        together=together,
        used=used,
        dtype=dtype,
        out=out,
    )
    return problem if problem.why_not is None else None


def line_signature(problem: LineProblem) -> Signature:
    """The image, the weight, the epilogue's inputs, the output."""
    p = problem
    return plain_signature(
        ((p.images, p.height, p.width), p.dtype),
        ((p.filters, p.groups, p.fold, p.window), p.dtype),
        ((p.images, *p.out_size, p.filters), p.out),
        p.ending(),
    )


def line_conv(
    problem: LineProblem, config: Config, box: tuple[int, int, int] | None = None,
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
    box = box or boxes(problem, 64 * config.atoms)[0]
    if reason := problem.why_not or why_not(problem, config) or why_no_box(problem, config, box):
        raise ConfigError(f"no Hopper kernel for this convolution: {reason}")
    with IRBuilder() as builder, build.prim_func(is_private=name is None):
        build.func_name(name or "main")
        mark(name, "hopper_conv")
        parameters = declare(signature or line_signature(problem))
        LineKernel(problem, config, box, parameters).emit()
    return builder.get()


class LineKernel(PixelKernel):
    """The main loop over groups of lines of the window."""

    def __init__(
        self, problem: LineProblem, config: Config, box: tuple[int, int, int],
        parameters: Parameters,
    ) -> None:  # fmt: skip
        super().__init__(problem, config, box, parameters)
        p = self.problem = problem
        self.instructions = p.instructions
        line = p.width * 2
        _, wide = p.out_size
        self.x_map = tensor_map(
            parameters.a,
            p.dtype,
            (p.window, wide, p.height - p.fold + 1, p.images, p.fold),
            (p.pixel * 2, line, p.height * line, line),
            (p.window, box[2], box[1] * p.step, box[0], p.fold),
            steps=(1, 1, p.step, 1, 1),
            swizzle=SWIZZLE[p.window * 2],
        )
        depth = p.groups * p.fold * p.window
        self.w_map = tensor_map(
            parameters.b, p.dtype, (depth, p.filters), (depth * 2,), (64, config.columns)
        )
        self.maps += [self.x_map, self.w_map]

    def left_lines(self) -> Lines:
        """Each of the lines of the window is a block of its own, with a short line a pixel."""
        return blocks_of(self.problem.window * 2, 64 * self.config.atoms)

    def load(self, slot: Any, step: Any, tile: Any, rank: Any) -> None:
        """Fill one stage: the lines under each warpgroup's box, and the weight's columns."""
        c, p = self.config, self.problem
        bar = self.full.pointer(slot)
        for group in range(c.consumers):
            image, line, column = self.corner(tile.index * c.consumers + group)
            tma_load(
                self.left_ring.ptr_to([slot, group * 64 * c.atoms * self.depth]),
                self.x_map,
                [const(0), column, line * p.step + step * p.fold, image, const(0)],
                bar,
            )
        tma_load(self.right_ring.ptr_to([slot, 0]), self.w_map, [step * 64, tile.column], bar)
