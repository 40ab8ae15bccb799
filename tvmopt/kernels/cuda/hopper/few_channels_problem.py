"""Convolutions of images of few channels as lines of pixels: what is computed, and in what steps.

The pixels under one line of the window lie side by side, so that the copy engine can read them as
one row; rows of neighbouring outputs overlap. Several lines of the window, loaded together, make
one step of the depth.
"""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hopper.config import DEPTH_BYTES
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue, identity
from tvmopt.kernels.cuda.hopper.problem import BYTES, MOST_ELEMENTS, OUTPUTS, ceil_div
from tvmopt.kernels.cuda.hopper.shared_layout import SWIZZLE

# Channels up to which an image is laid out anew: from 8 on, its own pixels are 16 bytes.
_MOST_CHANNELS = 7
# Elements of a step of the depth: they have 16 bits.
_STEP = DEPTH_BYTES // 2


@dataclasses.dataclass(frozen=True)
class LineProblem:
    """``y[n, h, w, o] = epilogue(sum_ge x[n, h * step + g, w * pixel + e] * k[o, g, e])``.

    Attributes:
        images: Images of the batch.
        height: Lines of the padded input.
        width: Elements of a line of the padded input.
        filters: Channels of the output.
        out_size: Lines and columns of the output.
        lines: Lines of the window (extent of ``g``).
        window: Elements of a line of the window (extent of ``e``), 16, 32 or 64.
        step: Lines between neighbouring lines of the output.
        pixel: Elements between neighbouring columns of the output.
        dtype: Type of input and weight, of 16 bits.
        out: Type of the output.
        epilogue: What is stored in place of the sum; its axes are those of the output (NHWC).
    """

    images: int
    height: int
    width: int
    filters: int
    out_size: tuple[int, int]
    lines: int
    window: int
    step: int
    pixel: int
    dtype: str = "float16"
    out: str = "float16"
    epilogue: Epilogue | None = None

    #: The weight is contiguous along the depth.
    right_major = True
    #: Instructions of a step, each of 32 bytes of depth.
    instructions = DEPTH_BYTES // 32

    def ending(self) -> Epilogue:
        """The epilogue, or the one that stores the sum itself."""
        return self.epilogue or identity("float32", self.out, rank=4)

    @property
    def fold(self) -> int:
        """Lines of the window that one step holds."""
        return _STEP // self.window

    @property
    def steps(self) -> int:
        """Steps of the depth."""
        return ceil_div(self.lines, self.fold)

    @property
    def stride(self) -> tuple[int, int]:
        """Lines, and places of the window, between neighbouring pixels of the output."""
        return self.step, 1

    @property
    def why_not(self) -> str | None:
        """Why no kernel of this family computes it; None where one does."""
        if BYTES.get(self.dtype) != 2 or self.out not in OUTPUTS[self.dtype]:
            return f"{self.dtype} to {self.out} is no pair of types of 16-bit factors"
        if self.window * 2 not in SWIZZLE:
            return f"a line of the window must be 16, 32 or 64 elements, not {self.window}"
        if self.width * 2 % 16 or self.pixel * 2 % 16:
            return "the copy engine needs lines, and steps of the window, of multiples of 16 bytes"
        high, wide = self.out_size
        if (high - 1) * self.step + self.steps * self.fold > self.height:
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
    """
    if BYTES.get(dtype) != 2 or channels > _MOST_CHANNELS:
        return None
    (kh, kw), (sh, sw) = kernel, stride
    top, left, bottom, right = padding
    high = (height + top + bottom - kh) // sh + 1
    wide = (width + left + right - kw) // sw + 1
    filled = next(c for c in (1, 2, 4, 8) if c >= channels and sw * c % 8 == 0)
    window = next((e for e in (16, 32, 64) if e >= kw * filled), None)
    if window is None or min(high, wide) < 1:
        return None
    fold = _STEP // window
    problem = LineProblem(
        images=images,
        height=(high - 1) * sh + ceil_div(kh, fold) * fold,
        width=ceil_div((wide - 1) * sw * filled + window, 8) * 8,
        filters=filters,
        out_size=(high, wide),
        lines=kh,
        window=window,
        step=sh,
        pixel=sw * filled,
        dtype=dtype,
        out=out,
    )
    return problem if problem.why_not is None else None
