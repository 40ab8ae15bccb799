"""Packed form of a convolution of few input channels, and its K blocks.

Channels are padded so that the pixels under one kernel row are one contiguous, 16-byte-aligned run,
which TMA reads as one row; the runs of neighbouring outputs overlap::

    image row:  | p0 | p1 | p2 | p3 | p4 | ...
    output 0:   |---- window -------|              window: kernel width x padded channels,
    output 1:        |---- window -------|         rounded up to 16, 32 or 64 elements

A K block holds several kernel rows.
"""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hopper.epilogue import Epilogue, identity
from tvmopt.kernels.cuda.hopper.problem import (
    BYTES,
    K_BLOCK_BYTES,
    MOST_ELEMENTS,
    OUTPUTS,
    ceil_div,
)
from tvmopt.kernels.cuda.hopper.smem_layout import SWIZZLE
from tvmopt.kernels.workload import Refusal

# Most channels of an image that is packed: from 8 on, a 16-bit pixel already has 16 bytes.
_MOST_CHANNELS = 7
# Elements of a K block: they have 16 bits.
_STEP = K_BLOCK_BYTES // 2


@dataclasses.dataclass(frozen=True)
class FewChannelsProblem:
    """``y[n, h, w, o] = epilogue(sum_ge x[n, h * sh + g, w * sw + e] * k[o, g, e])``.

    Attributes:
        images: Batch size.
        height: Height of the padded input.
        width: Elements of a row of the padded input.
        filters: Output channels.
        out_size: Height and width of the output.
        kernel_rows: Kernel height (extent of ``g``).
        window: Elements under a kernel row (extent of ``e``): 16, 32 or 64.
        row_stride: Stride down (``sh``), in input rows.
        column_stride: Stride across (``sw``), in elements.
        dtype: Dtype of input and weight, 16 bits wide.
        out: Output dtype.
        epilogue: Elementwise epilogue over NHWC axes; None to store the accumulator.
    """

    images: int
    height: int
    width: int
    filters: int
    out_size: tuple[int, int]
    kernel_rows: int
    window: int
    row_stride: int
    column_stride: int
    dtype: str = "float16"
    out: str = "float16"
    epilogue: Epilogue | None = None

    #: The weight is K-major.
    weight_k_major = True

    def epilogue_or_cast(self) -> Epilogue:
        """Return the epilogue; by default a cast of the accumulator."""
        return self.epilogue or identity("float32", self.out, rank=4)

    @property
    def fold(self) -> int:
        """Kernel rows that one K block holds."""
        return _STEP // self.window

    @property
    def loaded_rows(self) -> int:
        """Kernel rows that are loaded of a K block: fewer where the kernel has fewer."""
        return min(self.fold, self.kernel_rows)

    @property
    def k_steps(self) -> int:
        """Number of wgmma K steps of a K block, 32 bytes each."""
        return self.loaded_rows * self.window * BYTES[self.dtype] // 32

    @property
    def k_blocks(self) -> int:
        """K blocks."""
        return ceil_div(self.kernel_rows, self.fold)

    @property
    def stride(self) -> tuple[int, int]:
        """Stride of the TMA box: input rows down, windows across."""
        return self.row_stride, 1

    @property
    def refusal(self) -> Refusal | None:
        """Why no kernel of this family computes the problem; None where one does."""
        if BYTES.get(self.dtype) != 2 or self.out not in OUTPUTS[self.dtype]:
            return Refusal(f"{self.dtype} to {self.out} is no pair of types of 16-bit factors")
        if self.window * 2 not in SWIZZLE:
            return Refusal(f"a line of the window must be 16, 32 or 64 elements, not {self.window}")
        if self.width * 2 % 16 or self.column_stride * 2 % 16:
            return Refusal("TMA needs rows, and strides of the window, of multiples of 16 bytes")
        high, wide = self.out_size
        if (high - 1) * self.row_stride + self.k_blocks * self.fold > self.height:
            return Refusal("the window reaches beyond the last line")
        if (wide - 1) * self.column_stride + self.window > self.width:
            return Refusal("the window reaches beyond the end of a line")
        if self.images * high * wide * self.filters > MOST_ELEMENTS:
            return Refusal("the output has more than 2**31 - 1 elements")
        if self.images * self.height * self.width > MOST_ELEMENTS:
            return Refusal("the padded input has more than 2**31 - 1 elements")
        if not 1 <= self.row_stride <= 8:
            return Refusal(
                f"TMA's element stride is at most 8, but the stride is {self.row_stride}"
            )
        return None


def few_channels_problem(
    images: int, height: int, width: int, channels: int, filters: int, kernel: tuple[int, int],
    stride: tuple[int, int], padding: tuple[int, int, int, int], dtype: str, out: str,
) -> FewChannelsProblem | None:  # fmt: skip
    """Return the packed form of a convolution; None where it is impossible or does not pay.

    Args:
        images: Batch size.
        height: Height of the image.
        width: Width of the image.
        channels: Input channels.
        filters: Output channels.
        kernel: Kernel height and width.
        stride: Stride down and across.
        padding: Zero padding: top, left, bottom, right.
        dtype: Dtype of image and weight.
        out: Output dtype.
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
    problem = FewChannelsProblem(
        images=images,
        height=(high - 1) * sh + ceil_div(kh, fold) * fold,
        width=ceil_div((wide - 1) * sw * filled + window, 8) * 8,
        filters=filters,
        out_size=(high, wide),
        kernel_rows=kh,
        window=window,
        row_stride=sh,
        column_stride=sw * filled,
        dtype=dtype,
        out=out,
    )
    return problem if problem.refusal is None else None
