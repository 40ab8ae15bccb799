"""DepthwiseTile: a tile of outputs of a depthwise convolution, in words of neighbouring taps.

A word is a vector register whose lane ``c`` holds neighbouring pixels of channel ``c`` in 32 bits:
4 bytes, or 2 int16. The words of a window hold its ``kw`` pixels of an input row. Windows of
``4 k + 1`` pixels have a lone tap: the last word holds one pixel.
"""

from __future__ import annotations

import dataclasses

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.intrinsics.tap_dots import TapDot


@dataclasses.dataclass(frozen=True)
class DepthwiseTile:
    """A tile of outputs of a depthwise convolution, for one vector of channels.

    Attributes:
        dot: The instruction.
        signed: Whether the data is int8; otherwise it is uint8.
        kernel: Height and width of the window.
        stride: Strides along height and width.
        rows: Output rows.
        columns: Output columns.
        transposed: Whether rows and columns count the transposed image, for windows that are
            one pixel wide: ``kernel`` and ``stride`` are transposed as well.
    """

    dot: TapDot
    signed: bool
    kernel: tuple[int, int]
    stride: tuple[int, int]
    rows: int
    columns: int
    transposed: bool = False

    @property
    def input_rows(self) -> int:
        """Rows of the data that the tile reads."""
        return (self.rows - 1) * self.stride[0] + self.kernel[0]

    @property
    def input_columns(self) -> int:
        """Columns of the data that the tile reads."""
        return (self.columns - 1) * self.stride[1] + self.kernel[1]

    @property
    def has_lone_tap(self) -> bool:
        """Whether the last tap has its own word, which holds one pixel."""
        return self.kernel[1] % self.dot.taps == 1

    @property
    def words(self) -> int:
        """Words of a window, with that of a lone tap."""
        return -(-self.kernel[1] // self.dot.taps)

    @property
    def first_tap(self) -> int:
        """Position of the first tap in the words of a window."""
        return 0 if self.has_lone_tap else -self.kernel[1] % self.dot.taps

    @property
    def skipped_taps(self) -> int:
        """Position of the first tap in the only word of a window; 0 if it has several words."""
        return self.first_tap if self.words == 1 else 0

    @property
    def interleaves(self) -> bool:
        """Whether words are made of two loaded pixels, and not by funnel shifts."""
        return self.dot.taps == 2

    @property
    def held_words(self) -> int:
        """Words of an input row that stay in registers from one output column to the next."""
        return 0 if self.interleaves else self.words - self.has_lone_tap

    @property
    def loaded_pixels(self) -> int:
        """Pixels of an input row that are loaded for an output column."""
        return self.kernel[1] if self.interleaves else min(self.kernel[1], self.stride[1])

    def window_uops(self, arch: CpuArch) -> int:
        """Return the instructions that make the words of an input row for an output column."""
        if self.interleaves:
            return 2 * self.words - self.has_lone_tap
        pixel = 1 + self.flips_sign + self.held_words * self.dot.slide_uops(arch)
        return self.loaded_pixels * pixel

    @property
    def flips_sign(self) -> bool:
        """Whether the data is int8 but the instruction takes uint8, or the reverse."""
        return self.dot.taps == 4 and self.signed != self.dot.signed

    @property
    def function(self) -> str:
        """Name of the LLVM function; encodes the tile."""
        (kh, kw), (sy, sx) = self.kernel, self.stride
        data = "s8" if self.signed else "u8"
        shape = f"k{kh}x{kw}_s{sy}x{sx}_r{self.rows}_x{self.columns}"
        shape += "_t" if self.transposed else ""
        return f"tvmopt_depthwise_{self.dot.name}_{data}_{shape}"
