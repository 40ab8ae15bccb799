"""Convolution problem of a Hopper kernel: extents, dtypes, layouts, epilogue."""

from __future__ import annotations

import dataclasses
import functools

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue, identity
from tvmopt.kernels.cuda.hopper.few_channels_problem import FewChannelsProblem, few_channels_problem
from tvmopt.kernels.cuda.hopper.packing import pitch_of
from tvmopt.kernels.cuda.hopper.problem import (
    BYTES,
    K_BLOCK_BYTES,
    MOST_ELEMENTS,
    OUTPUTS,
    ceil_div,
    needs_k_major,
)
from tvmopt.kernels.cuda.hopper.smem_layout import SWIZZLE
from tvmopt.kernels.workload import Refusal


@dataclasses.dataclass(frozen=True)
class ConvProblem:
    """``y[n, h, w, o] = epilogue(sum_rsc x[n, h*sh - ph + r*dh, w*sw - pw + s*dw, c] * k)``.

    Attributes:
        images: Batch size.
        height: Height of the input.
        width: Width of the input.
        channels: Input channels.
        filters: Output channels.
        kernel: Kernel height and width.
        stride: Stride down and across.
        padding: Zero padding: top, left, bottom, right.
        dilation: Dilation down and across.
        dtype: Dtype of input and weight.
        out: Output dtype.
        weight: Layout of the weight: ``"OHWI"`` or ``"HWIO"``.
        epilogue: Elementwise epilogue over NHWC axes; None to store the accumulator.
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
        """Accumulator dtype."""
        return dtypes.dtype(self.dtype).accumulator

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        (kh, kw), (sh, sw), (dh, dw) = self.kernel, self.stride, self.dilation
        top, left, bottom, right = self.padding
        return (
            (self.height + top + bottom - dh * (kh - 1) - 1) // sh + 1,
            (self.width + left + right - dw * (kw - 1) - 1) // sw + 1,
        )

    def epilogue_or_cast(self) -> Epilogue:
        """Return the epilogue; by default a cast of the accumulator."""
        return self.epilogue or identity(self.accumulator, self.out, rank=4)

    @property
    def k_blocks(self) -> int:
        """K blocks: over kernel taps and channel slices."""
        taps = self.kernel[0] * self.kernel[1]
        return ceil_div(taps, self.fold) * self.channel_slices

    @property
    def fold(self) -> int:
        """Taps that one K block holds, because their pixels have few channels."""
        line = self.channels * BYTES[self.dtype]
        return K_BLOCK_BYTES // line if line in SWIZZLE and self.kernel != (1, 1) else 1

    @property
    def channel_slices(self) -> int:
        """K blocks that the channels of one pixel take."""
        return ceil_div(self.channels * BYTES[self.dtype], K_BLOCK_BYTES)

    @property
    def k_steps(self) -> int:
        """K steps of wgmma (32 bytes each) of a K block; fewer than four where that suffices."""
        if self.fold > 1:
            return K_BLOCK_BYTES // 32
        return ceil_div(self.channels * BYTES[self.dtype], self.channel_slices * 32)

    @property
    def weight_k_major(self) -> bool:
        """Whether the weight is K-major when wgmma reads it."""
        return self.weight == "OHWI" or needs_k_major(self.dtype)

    @functools.cached_property
    def few_channels(self) -> FewChannelsProblem | None:
        """The packed form for few channels; None where it does not apply."""
        if self.dilation != (1, 1) or self.weight not in ("OHWI", "HWIO"):
            return None
        found = few_channels_problem(
            self.images, self.height, self.width, self.channels, self.filters, self.kernel,
            self.stride, self.padding, self.dtype, self.out,
        )  # fmt: skip
        return found and dataclasses.replace(found, epilogue=self.epilogue)

    @property
    def tiled(self) -> ConvProblem | FewChannelsProblem:
        """The problem that is tiled: the packed form, or the convolution itself."""
        return self.few_channels or self

    @property
    def packed(self) -> tuple[bool, bool]:
        """Whether image and weight are packed first."""
        if self.few_channels is not None:
            return True, True
        size = BYTES[self.dtype]
        row = self.channels if self.weight_k_major else self.filters
        transposed = self.weight_k_major and self.weight != "OHWI"
        return self.channels * size % 16 != 0, transposed or row * size % 16 != 0

    @property
    def packing_bytes(self) -> int:
        """Bytes that the packing kernel reads and writes."""
        image, weight = self.packed
        pixels = self.images * self.height * self.width * image
        taps = self.kernel[0] * self.kernel[1] * self.channels * self.filters * weight
        written = pixels * self.channels
        if self.few_channels is not None:
            written = self.images * self.few_channels.height * self.few_channels.width
        return (pixels * self.channels + written + 2 * taps) * BYTES[self.dtype]

    @property
    def refusal(self) -> Refusal | None:
        """Why no kernel of this family computes the problem; None where one does."""
        if self.dtype not in OUTPUTS or self.out not in OUTPUTS[self.dtype]:
            return Refusal(f"{self.dtype} to {self.out} is no pair of types of the tensor cores")
        if self.weight not in ("OHWI", "HWIO"):
            return Refusal(f"the weight must be OHWI or HWIO, but is {self.weight}")
        if min(self.images, self.height, self.width, self.channels, self.filters) < 1:
            return Refusal("every extent must be at least 1")
        if min(self.out_size) < 1:
            return Refusal("the window is larger than the padded input")
        high, wide = self.out_size
        if self.images * high * wide * self.filters > MOST_ELEMENTS:
            return Refusal("the output has more than 2**31 - 1 elements")
        if self.packed[0]:
            pitch = pitch_of(self.channels, self.dtype)
            if self.images * (self.height + 16) * (self.width + 16) * pitch > MOST_ELEMENTS:
                return Refusal("a copy of the image has more than 2**31 - 1 elements")
        if max(self.stride) > 8:
            return Refusal(f"TMA's element stride is at most 8, but the stride is {self.stride}")
        return None
