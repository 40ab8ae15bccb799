"""LLVM IR of depthwise convolutions with dot-product instructions.

A sliding window holds the taps of one input row: lane ``c`` of a word holds neighbouring pixels of
channel ``c``. One funnel shift moves the window by one pixel, and all output rows that read the
input row share it::

    v[x]     | d[x-1] | d[x]   | d[x+1] | d[x+2] |      weights | 0 | w0 | w1 | w2 |
    v[x + 1] | d[x]   | d[x+1] | d[x+2] | d[x+3] |  =  fshr(zext32(d[x+3]), v[x], 8)

The newest pixel is the last tap, so that no pixel outside of the windows is loaded. A window of
5 x 5 has one tap more than a word: its last tap is the word ``zext32(d[x+4])``, from which the
funnel shift of the next column takes its pixel anyway.

Of 2 taps per word nothing is held: bytes of two pixels are interleaved and extended to int16, which
costs as much as a funnel shift, and every pixel is loaded again for the next column.
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
        transposed: Whether rows and columns are those of the transposed image, for windows that are
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
        """Whether the last tap has a word of its own, which holds one pixel."""
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

    def source(self) -> str:
        """Return the LLVM IR of :attr:`function`.

        Its parameters are the first element of the data, the distances of its rows and columns in
        bytes, the packed weight ``(ky, word, lane, tap)`` int8, the first accumulator, and the
        distances of rows and columns of the accumulators in bytes. The weight starts at
        :attr:`skipped_taps`, where the region that the intrinsic matches starts.
        """
        return _Writer(self).function()


class _Writer:
    """Writes the function of one tile, instruction by instruction."""

    def __init__(self, tile: DepthwiseTile) -> None:
        self._tile, self._dot = tile, tile.dot
        self._lanes = tile.dot.lanes
        self._vector = f"<{self._lanes} x i32>"
        self._packed = f"<{self._lanes * tile.dot.taps} x i{tile.dot.tap_bits}>"
        self._lines: list[str] = []
        self._count = 0

    def function(self) -> str:
        tile, dot = self._tile, self._dot
        rows = range(tile.input_rows)
        weights = self._weights()
        start = self._start(weights)
        pointers = [self._at("%data", f"mul i64 %line, {i}") for i in rows]
        before = tile.kernel[1] - tile.loaded_pixels
        states = []
        for pointer in pointers:
            state = ["zeroinitializer"] * tile.held_words
            for x in range(before):
                pixel = self._extend(self._pixel(pointer, f"mul i64 %pitch, {x}"))
                state = self._slide(state, pixel)
            states.append(state)
        entry, self._lines = self._lines, []

        phis = [[f"%v{i}w{g}" for g in range(tile.held_words)] for i in rows]
        left = self._set(f"mul i64 %x, {tile.stride[1]}")
        moved = list(phis)
        totals = [start] * tile.rows
        for i in rows:
            pixels = []
            for x in range(before, tile.kernel[1]):
                at = self._set(f"add i64 {left}, {x}")
                pixels.append(self._pixel(pointers[i], f"mul i64 %pitch, {at}"))
            if tile.interleaves:
                window = self._interleaved(pixels)
            else:
                window, moved[i] = self._moved(phis[i], pixels)
            for r in range(tile.rows):
                ky = i - r * tile.stride[0]
                if 0 <= ky < tile.kernel[0]:
                    for word, weight in zip(window, weights[ky], strict=True):
                        totals[r] = self._multiply(totals[r], word, weight)
        for r, total in enumerate(totals):
            offset = self._set("mul i64 %column, %x")
            line = self._set(f"mul i64 %row, {r}")
            pointer = self._at("%out", f"add i64 {offset}, {line}")
            self._lines.append(f"store {self._vector} {total}, ptr {pointer}, align 4")
        body, self._lines = self._lines, []
        head = ["%x = phi i64 [ 0, %entry ], [ %next, %loop ]"]
        head += [
            f"{phis[i][g]} = phi {self._vector} "
            f"[ {states[i][g]}, %entry ], [ {moved[i][g]}, %loop ]"
            for i in rows
            for g in range(tile.held_words)
        ]
        end = [
            "%next = add nuw nsw i64 %x, 1",
            f"%more = icmp ult i64 %next, {tile.columns}",
            "br i1 %more, label %loop, label %done",
        ]
        argument = "<{0} x i32>, {1}, {1}" if dot.accumulates else "{1}, {1}"
        arguments = argument.format(self._lanes, self._packed)
        return "\n".join(
            [
                f"declare {self._vector} @{dot.llvm_name}({arguments})",
                f"declare {self._vector} @llvm.fshr.v{self._lanes}i32("
                f"{self._vector}, {self._vector}, {self._vector})",
                "",
                f"define linkonce_odr void @{tile.function}(ptr noalias readonly %data, "
                "i64 %line, i64 %pitch, ptr noalias readonly %weight, ptr noalias %out, "
                "i64 %row, i64 %column) #0 {",
                "entry:",
                *(f"  {line}" for line in [*entry, "br label %loop"]),
                "loop:",
                *(f"  {line}" for line in [*head, *body, *end]),
                "done:",
                "  ret void",
                "}",
                "attributes #0 = { alwaysinline nounwind }",
                "",
            ]
        )

    def _weights(self) -> list[list[str]]:
        """Load the packed weight; int16 taps are extended from int8."""
        count = self._lanes * self._dot.taps
        weights = []
        for ky in range(self._tile.kernel[0]):
            row = []
            for g in range(self._tile.words):
                position = (ky * self._tile.words + g) * count - self._tile.skipped_taps
                pointer = self._set(f"getelementptr i8, ptr %weight, i64 {position}")
                loaded = self._set(f"load <{count} x i8>, ptr {pointer}, align 1")
                if self._dot.tap_bits > 8:
                    loaded = self._set(f"sext <{count} x i8> {loaded} to {self._packed}")
                row.append(loaded)
            weights.append(row)
        return weights

    def _start(self, weights: list[list[str]]) -> str:
        """Return the initial accumulator: 0, or the correction for flipped sign bits.

        Flipping adds 128 to int8 data, and subtracts 128 from uint8 data.
        """
        if not self._tile.flips_sign:
            return "zeroinitializer"
        total = "zeroinitializer"
        for weight in (weight for row in weights for weight in row):
            total = self._multiply(total, self._splat(0x01010101), weight)
        factor = 128 if self._dot.signed else -128
        return self._set(f"mul {self._vector} {total}, {self._splat(factor)}")

    def _pixel(self, pointer: str, offset: str) -> str:
        """Load a pixel, one byte per channel."""
        at = self._at(pointer, offset)
        pixel = self._set(f"load <{self._lanes} x i8>, ptr {at}, align 1")
        if not self._tile.flips_sign:
            return pixel
        ones = ", ".join(["i8 -128"] * self._lanes)
        return self._set(f"xor <{self._lanes} x i8> {pixel}, <{ones}>")

    def _extend(self, pixel: str) -> str:
        """Extend a pixel to one channel per lane, in the low bits."""
        return self._set(f"zext <{self._lanes} x i8> {pixel} to {self._vector}")

    def _interleaved(self, pixels: list[str]) -> list[str]:
        """Return the words of a window of 2 int16 taps per word; a lone tap is followed by 0."""
        count = 2 * self._lanes
        order = ", ".join(f"i32 {i // 2 + i % 2 * self._lanes}" for i in range(count))
        pixels = [*pixels, *["zeroinitializer"] * (len(pixels) % 2)]
        extend = "sext" if self._tile.signed else "zext"
        words = []
        for pair in zip(pixels[::2], pixels[1::2], strict=True):
            operands = ", ".join(f"<{self._lanes} x i8> {pixel}" for pixel in pair)
            both = self._set(f"shufflevector {operands}, <{count} x i32> <{order}>")
            wide = self._set(f"{extend} <{count} x i8> {both} to {self._packed}")
            words.append(self._set(f"bitcast {self._packed} {wide} to {self._vector}"))
        return words

    def _moved(self, held: list[str], pixels: list[str]) -> tuple[list[str], list[str]]:
        """Return the words of a window after some pixels, and those to hold for the next column."""
        window = held
        for pixel in map(self._extend, pixels):
            last, held = held, self._slide(held, pixel)
            window = [*last, pixel] if self._tile.has_lone_tap else held
        return window, held

    def _slide(self, words: list[str], pixel: str) -> list[str]:
        """Move the held words of a window by one pixel."""
        return [
            self._set(
                f"call {self._vector} @llvm.fshr.v{self._lanes}i32({self._vector} {after}, "
                f"{self._vector} {word}, {self._vector} {self._splat(self._dot.tap_bits)})"
            )
            for word, after in zip(words, [*words[1:], pixel], strict=True)
        ]

    def _multiply(self, total: str, word: str, weight: str) -> str:
        vector, packed = self._vector, self._packed
        taps = self._set(f"bitcast {vector} {word} to {packed}")
        operands = f"{packed} {taps}, {packed} {weight}"
        name = f"call {vector} @{self._dot.llvm_name}"
        if self._dot.accumulates:
            return self._set(f"{name}({vector} {total}, {operands})")
        product = self._set(f"{name}({operands})")
        return self._set(f"add {vector} {total}, {product}")

    def _splat(self, value: int) -> str:
        return f"<{', '.join([f'i32 {value}'] * self._lanes)}>"

    def _at(self, pointer: str, offset: str) -> str:
        return self._set(f"getelementptr i8, ptr {pointer}, i64 {self._set(offset)}")

    def _set(self, instruction: str) -> str:
        """Append an instruction and return the name of its result."""
        self._count += 1
        name = f"%t{self._count}"
        self._lines.append(f"{name} = {instruction}")
        return name
