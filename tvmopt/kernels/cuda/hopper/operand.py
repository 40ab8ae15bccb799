"""An operand of a product in memory, and how the copy engine loads tiles of it."""

from __future__ import annotations

import itertools
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import DEPTH_BYTES
from tvmopt.kernels.cuda.hopper.emit import const, quotient, tensor_map, tma_load
from tvmopt.kernels.cuda.hopper.operand_copies import pitch_of
from tvmopt.kernels.cuda.hopper.problem import BYTES, ceil_div

# Rows of a box of the copy engine at most, and after how many the swizzle's pattern repeats.
_BOX_ROWS, _PATTERN = 256, 8


class Operand:
    """A matrix that tiles of rows (or columns) by depth are loaded from.

    In shared memory rows that are contiguous along the depth lie under each other, 128 bytes each;
    others lie as blocks of 64 rows, each with one line of 128 bytes for every step of the depth.
    Thread blocks that share a tile each load a part: of its rows, or of the lines of each block.

    The copy engine is slow where it only writes zeros. So the last tile loads no rows that there
    are not (of ``major``, by a map of its own), or no such blocks; what the tensor cores make of
    the rest is not stored.
    """

    def __init__(
        self, buffer: Any, dtype: str, rows: Any, depth: int, major: bool, batch: int, tile: int,
        parts: int = 1,
    ) -> None:  # fmt: skip
        self.major = major
        self.batch = batch
        self.tile = tile
        self.parts = parts
        self.step = DEPTH_BYTES // BYTES[dtype]
        self.rows = rows
        size = BYTES[dtype]
        across, along = (depth, rows) if major else (rows, depth)
        pitch = pitch_of(across, dtype) if isinstance(across, int) else across
        shape = [across, along]
        strides = [pitch * size]
        if batch > 1:
            shape.append(batch)
            strides.append(pitch * along * size)

        def box_of(rows: int) -> Any:
            box = [self.step, rows] if major else [64, self.step // parts]
            return tensor_map(buffer, dtype, shape, strides, box + [1] * (batch > 1))

        self.boxes = ceil_div(ceil_div(tile, parts), _BOX_ROWS) if major else tile // 64
        #: Rows of the last tile that are loaded; 0 where it is as the others.
        self.rest = 0
        if isinstance(rows, int) and rows % tile and not (self.boxes > 1 and major):
            # Parts begin where the swizzle's pattern does, every 8 rows.
            unit = (_PATTERN if parts > 1 else 1) if major else 64
            rest = ceil_div(rows % tile, unit) * unit
            self.rest = rest if rest < tile else 0
        heights = {h for extent in (tile, self.rest) for h in self._heights(extent) if h}
        #: By the rows that it loads; alike where a part has lines of all of them.
        self._by_height = {h: box_of(h) for h in sorted(heights)} if major else {0: box_of(0)}
        self.maps = list(self._by_height.values())

    def _heights(self, rows: int) -> list[int]:
        """Rows of a box of each part of ``rows``."""
        if self.parts == 1:
            return [rows // self.boxes]
        pieces = rows // _PATTERN
        ends = [_PATTERN * (part * pieces // self.parts) for part in range(self.parts + 1)]
        return [(end - first) // self.boxes for first, end in itertools.pairwise(ends)]

    def missing(self, start: Any) -> Any:
        """Bytes of the tile from ``start`` on that are not loaded, because there are no rows."""
        if not self.rest:
            return 0
        spare = (self.tile - self.rest) * DEPTH_BYTES
        return tirx.Select(self._is_whole(start), const(0), const(spare))

    def _is_whole(self, start: Any) -> Any:
        return start + self.tile <= self.rows

    def load(
        self, stage: Any, slot: Any, bar: Any, start: Any, step: Any, batch: Any,
        part: Any = 0, mask: Any = 0,
    ) -> None:  # fmt: skip
        """Load a part of the tile that begins at row ``start``."""

        def rows(extent: int) -> None:
            load = self._load_rows if self.major else self._load_blocks
            load(extent, stage, slot, bar, start, step, batch, part, mask)

        if not self.rest:
            rows(self.tile)
            return
        with build.If(self._is_whole(start)):
            with build.Then():
                rows(self.tile)
            with build.Else():
                rows(self.rest)

    def _load_rows(
        self, rows: int, stage: Any, slot: Any, bar: Any, start: Any, step: Any, batch: Any,
        part: Any, mask: Any,
    ) -> None:  # fmt: skip
        heights = self._heights(rows)
        first: Any = part * (rows // self.parts)
        if min(heights) < max(heights):
            first = build.Bind(quotient(part * (rows // _PATTERN), self.parts) * _PATTERN)

        def load(height: int) -> None:
            for i in range(self.boxes):
                row = first + i * height
                place = [step * self.step, start + row, *([batch] if self.batch > 1 else [])]
                where = stage.ptr_to([slot, row * self.step])
                tma_load(where, self._by_height[height], place, bar, mask)

        low, high = min(heights), max(heights)
        if low == high:
            load(low)
            return
        longer = tirx.any(*(part == number for number, h in enumerate(heights) if h == high))
        with build.If(longer):
            with build.Then():
                load(high)
            if low:
                with build.Else():
                    load(low)

    def _load_blocks(
        self, rows: int, stage: Any, slot: Any, bar: Any, start: Any, step: Any, batch: Any,
        part: Any, mask: Any,
    ) -> None:  # fmt: skip
        lines = self.step // self.parts
        for i in range(rows // 64):
            place = [start + i * 64, step * self.step + part * lines]
            where = stage.ptr_to([slot, i * 64 * self.step + part * lines * 64])
            tma_load(where, self._by_height[0], place + [batch] * (self.batch > 1), bar, mask)
