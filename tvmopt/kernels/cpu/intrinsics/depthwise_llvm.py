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

from tvmopt.kernels.cpu.intrinsics.depthwise_tile import DepthwiseTile


def llvm_source(tile: DepthwiseTile) -> str:
    """Return the LLVM IR of the function of ``tile``.

    Its parameters are the first element of the data, the distances of its rows and columns in
    bytes, the packed weight ``(ky, word, lane, tap)`` int8, the first accumulator, and the
    distances of rows and columns of the accumulators in bytes. The weight starts at
    ``tile.skipped_taps``, where the region that the intrinsic matches starts.
    """
    return _Writer(tile).function()


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
        """Return the function: the first windows, and a loop over the columns."""
        tile = self._tile
        rows = range(tile.input_rows)
        weights = self._weights()
        start = self._start(weights)
        pointers = [self._at("%data", f"mul i64 %line, {i}") for i in rows]
        first = [self._first_words(pointer) for pointer in pointers]
        entry, self._lines = self._lines, []

        held = [[f"%v{i}w{g}" for g in range(tile.held_words)] for i in rows]
        moved = self._column(pointers, held, weights, start)
        phis = ["%x = phi i64 [ 0, %entry ], [ %next, %loop ]"]
        for i in rows:
            for word, before, after in zip(held[i], first[i], moved[i], strict=True):
                values = f"[ {before}, %entry ], [ {after}, %loop ]"
                phis.append(f"{word} = phi {self._vector} {values}")
        return self._definition(entry, [*phis, *self._lines])

    def _definition(self, entry: list[str], loop: list[str]) -> str:
        """Return the function of the basic blocks ``entry`` and ``loop``."""
        tile, dot, vector = self._tile, self._dot, self._vector
        operands = [*([vector] if dot.accumulates else []), self._packed, self._packed]
        shift = f"@llvm.fshr.v{self._lanes}i32({vector}, {vector}, {vector})"
        return "\n".join(
            [
                f"declare {vector} @{dot.llvm_name}({', '.join(operands)})",
                f"declare {vector} {shift}",
                "",
                f"define linkonce_odr void @{tile.function}(ptr noalias readonly %data, "
                "i64 %line, i64 %pitch, ptr noalias readonly %weight, ptr noalias %out, "
                "i64 %row, i64 %column) #0 {",
                "entry:",
                *(f"  {line}" for line in [*entry, "br label %loop"]),
                "loop:",
                *(f"  {line}" for line in loop),
                "  %next = add nuw nsw i64 %x, 1",
                f"  %more = icmp ult i64 %next, {tile.columns}",
                "  br i1 %more, label %loop, label %done",
                "done:",
                "  ret void",
                "}",
                "attributes #0 = { alwaysinline nounwind }",
                "",
            ]
        )

    def _first_words(self, pointer: str) -> list[str]:
        """Return the held words of an input row before the first column."""
        words = ["zeroinitializer"] * self._tile.held_words
        for x in range(self._tile.kernel[1] - self._tile.loaded_pixels):
            words = self._slide(words, self._extend(self._pixel(pointer, f"mul i64 %pitch, {x}")))
        return words

    def _column(
        self, pointers: list[str], held: list[list[str]], weights: list[list[str]], start: str
    ) -> list[list[str]]:
        """Compute a column of outputs; return the words to hold for the next column.

        Input rows come one after the other, because LLVM keeps this order and so few registers.
        """
        tile = self._tile
        left = self._set(f"mul i64 %x, {tile.stride[1]}")
        moved = []
        totals = [start] * tile.rows
        for i, (pointer, words) in enumerate(zip(pointers, held, strict=True)):
            pixels = []
            for x in range(tile.kernel[1] - tile.loaded_pixels, tile.kernel[1]):
                at = self._set(f"add i64 {left}, {x}")
                pixels.append(self._pixel(pointer, f"mul i64 %pitch, {at}"))
            if tile.interleaves:
                window = self._interleaved(pixels)
            else:
                window, words = self._moved(words, pixels)
            moved.append(words)
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
        return moved

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
