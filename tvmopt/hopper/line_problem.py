"""Convolutions of images of few channels as lines of pixels: what is computed, and in what steps.

The pixels under one line of the window lie side by side, so that the copy engine can read them as
one row; rows of neighbouring outputs overlap. Short ones are loaded for several lines of the window
at once, which make one step of the depth. Or neighbouring pixels of the output are computed as one
of more channels: their windows together fill a row, and fewer rows are loaded.
"""

from __future__ import annotations

import dataclasses
import functools

from tvm import tirx

from .config import DEPTH_BYTES
from .epilogue import Epilogue, identity, substitute
from .problem import BYTES, MOST_ELEMENTS, OUTPUTS, ceil_div
from .stage_layout import SWIZZLE

# Channels up to which an image is laid out anew: from 8 on, its own pixels are 16 bytes.
_MOST_CHANNELS = 7
# Elements of a step of the depth: they have 16 bits.
_STEP = DEPTH_BYTES // 2
# Pixels that may be computed as one.
_TOGETHER = (1, 2, 4)


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

    def ending(self) -> Epilogue:
        """The epilogue, or the one that stores the sum itself."""
        return self.epilogue or identity("float32", self.out, rank=4)

    @functools.cached_property
    def plan(self) -> LinePlan:
        """The steps that take least."""
        plans = [LinePlan(self, together) for together in _TOGETHER]
        return min((p for p in plans if p.fits), key=lambda p: p.cycles)

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
        plain = LinePlan(self)
        if plain.height > self.height:
            return "the window reaches beyond the last line"
        if plain.width > self.width:
            return "the window reaches beyond the end of a line"
        if self.images * high * wide * self.filters > MOST_ELEMENTS:
            return "the output has more than 2**31 - 1 elements"
        if self.images * self.height * self.width > MOST_ELEMENTS:
            return "the padded input has more than 2**31 - 1 elements"
        if not 1 <= self.step <= 8:
            return f"the copy engine's step is at most 8, but the stride is {self.step}"
        return None


@dataclasses.dataclass(frozen=True)
class LinePlan:
    """The steps in which a problem is computed.

    Attributes:
        problem: The problem.
        together: Pixels of its output, side by side, that are computed as one: the channels of
            that one are theirs in turn.
    """

    problem: LineProblem
    together: int = 1

    #: The weight is contiguous along the depth.
    right_major = True

    @property
    def images(self) -> int:
        """Images of the batch."""
        return self.problem.images

    @property
    def dtype(self) -> str:
        """Type of the factors."""
        return self.problem.dtype

    @property
    def out(self) -> str:
        """Type of the output."""
        return self.problem.out

    @property
    def filters(self) -> int:
        """Channels of the output."""
        return self.problem.filters * self.together

    @property
    def out_size(self) -> tuple[int, int]:
        """Lines and columns of the output."""
        high, wide = self.problem.out_size
        return high, wide // self.together

    @property
    def stride(self) -> tuple[int, int]:
        """Lines, and places of the window, between neighbouring pixels of the output."""
        return self.problem.step, 1

    @property
    def pixel(self) -> int:
        """Elements between neighbouring columns of the output."""
        return self.problem.pixel * self.together

    @property
    def used(self) -> int:
        """Elements under one line of the windows."""
        return self.problem.window + (self.together - 1) * self.problem.pixel

    @property
    def row(self) -> int:
        """Elements that the copy engine reads as one row."""
        return self.problem.window if self.together == 1 else _STEP

    @property
    def fold(self) -> int:
        """Lines of the window that one step holds."""
        return _STEP // self.row

    @property
    def steps(self) -> int:
        """Steps of the depth."""
        return ceil_div(self.problem.lines, self.fold)

    @property
    def instructions(self) -> int:
        """Instructions of a step, each of 32 bytes of depth."""
        return 4 if self.fold > 1 else ceil_div(self.used * 2, 32)

    @property
    def height(self) -> int:
        """Lines of the padded input that are read."""
        return (self.out_size[0] - 1) * self.problem.step + self.steps * self.fold

    @property
    def width(self) -> int:
        """Elements of a line of the padded input that are read."""
        return (self.out_size[1] - 1) * self.pixel + self.row

    @property
    def fits(self) -> bool:
        """Whether the problem can be computed so."""
        p = self.problem
        if p.height < self.height or p.width < self.width:
            return False
        one = self.together == 1
        return one or (
            p.out_size[1] % self.together == 0 and self.used <= _STEP and p.filters % 8 == 0
        )

    @property
    def cycles(self) -> float:
        """Cycles of one pixel of the problem's output, about: to multiply it, or to load it."""
        multiply = 0.6 * self.steps * self.instructions * self.filters / 64
        load = 3.0 * self.steps * self.fold
        return (max(multiply, load) + 0.1 * (multiply + load)) / self.together

    @property
    def epilogue(self) -> Epilogue | None:
        """What is stored in place of the sum."""
        ending, p = self.problem.epilogue, self.problem
        if ending is None or self.together == 1:
            return ending
        n, y, w, o = axes = tuple(tirx.Var(axis.name, "int32") for axis in ending.axes)
        places = (
            n, y, w * self.together + tirx.truncdiv(o, p.filters), tirx.truncmod(o, p.filters)
        )  # fmt: skip
        values = {
            old: new if str(old.ty.dtype) == "int32" else tirx.Cast(str(old.ty.dtype), new)
            for old, new in zip(ending.axes, places, strict=True)
        }
        return dataclasses.replace(ending, axes=axes, expr=substitute(ending.expr, values, ()))

    def ending(self) -> Epilogue:
        """The epilogue, or the one that stores the sum itself."""
        return self.epilogue or identity("float32", self.out, rank=4)


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
    # As large as any plan wants it, to begin with.
    roomy = LineProblem(
        images, (high + 8) * sh + kh + 8, (wide + 8) * sw * filled + 64, filters, (high, wide), kh,
        window, sh, sw * filled, dtype, out,
    )  # fmt: skip
    plans = (roomy.plan, LinePlan(roomy))
    problem = dataclasses.replace(
        roomy,
        height=max(p.height for p in plans),
        width=ceil_div(max(p.width for p in plans), 8) * 8,
    )
    return problem if problem.why_not is None else None
