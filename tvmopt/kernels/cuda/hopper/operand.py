"""GEMM operand in global memory, and the TMA loads of its tiles."""

from __future__ import annotations

import itertools
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import K_BLOCK_BYTES
from tvmopt.kernels.cuda.hopper.emit import const, quotient, tensor_map, tma_load
from tvmopt.kernels.cuda.hopper.operand_copies import pitch_of
from tvmopt.kernels.cuda.hopper.problem import BYTES, ceil_div

# Most rows of a TMA box; rows after which the 128-byte swizzle pattern repeats.
_BOX_ROWS, _PATTERN = 256, 8


class TmaOperand:
    """A matrix of which TMA loads (rows x K) tiles into a pipeline stage.

    Layout of a tile in shared memory, 128-byte swizzled::

        K-major (``major``):   row 0: 128 bytes of K     MN-major:  block 0: k = 0: 64 rows, 128 B
                               row 1: 128 bytes of K                         k = 1: 64 rows, 128 B
                               ...                                  block 1: rows 64 .. 127, ...

    With TMA multicast, each thread block loads one part of the shared tile: some of its rows
    (K-major), or some of the k lines of each block (MN-major).

    TMA is slow at filling with zeros. So the last tile loads no rows out of bounds (K-major, with
    a descriptor of its own), or no blocks out of bounds. wgmma then computes garbage in these
    rows, which the epilogue does not store.
    """

    def __init__(
        self, buffer: Any, dtype: str, rows: Any, depth: int, major: bool, batch: int, tile: int,
        parts: int = 1,
    ) -> None:  # fmt: skip
        self.major = major
        self.batch = batch
        self.tile = tile
        self.parts = parts
        self.step = K_BLOCK_BYTES // BYTES[dtype]
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
        #: Rows of the last tile that are loaded; 0 where the last tile is full.
        self.rest = 0
        if isinstance(rows, int) and rows % tile and not (self.boxes > 1 and major):
            # Parts begin where the swizzle pattern does, every 8 rows.
            unit = (_PATTERN if parts > 1 else 1) if major else 64
            rest = ceil_div(rows % tile, unit) * unit
            self.rest = rest if rest < tile else 0
        heights = {h for extent in (tile, self.rest) for h in self._heights(extent) if h}
        #: Descriptors by box height; one (key 0) for MN-major, whose parts cover all rows.
        self._by_height = {h: box_of(h) for h in sorted(heights)} if major else {0: box_of(0)}
        self.maps = list(self._by_height.values())

    def _heights(self, rows: int) -> list[int]:
        """Return the box height of each multicast part of ``rows`` rows."""
        if self.parts == 1:
            return [rows // self.boxes]
        pieces = rows // _PATTERN
        ends = [_PATTERN * (part * pieces // self.parts) for part in range(self.parts + 1)]
        return [(end - first) // self.boxes for first, end in itertools.pairwise(ends)]

    def missing(self, start: Any) -> Any:
        """Return the bytes that the tile at row ``start`` does not load (rows out of bounds)."""
        if not self.rest:
            return 0
        spare = (self.tile - self.rest) * K_BLOCK_BYTES
        return tirx.Select(self._is_whole(start), const(0), const(spare))

    def _is_whole(self, start: Any) -> Any:
        return start + self.tile <= self.rows

    def load(
        self, stage: Any, slot: Any, bar: Any, start: Any, step: Any, batch: Any,
        part: Any = 0, mask: Any = 0,
    ) -> None:  # fmt: skip
        """Issue the TMA loads of one part of the tile that begins at row ``start``.

        Args:
            stage: Ring buffer in shared memory.
            slot: Index of the pipeline stage.
            bar: Full barrier of that stage.
            start: First row.
            step: K block.
            batch: Batch index.
            part: Multicast part that this thread block loads.
            mask: Multicast mask: one bit for each receiving thread block; 0 without multicast.
        """

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
        """Issue the TMA loads of ``rows`` rows of a K-major operand."""
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
        """Issue the TMA loads of ``rows`` rows of an MN-major operand, 64 at a time."""
        lines = self.step // self.parts
        for i in range(rows // 64):
            place = [start + i * 64, step * self.step + part * lines]
            where = stage.ptr_to([slot, i * 64 * self.step + part * lines * 64])
            tma_load(where, self._by_height[0], place + [batch] * (self.batch > 1), bar, mask)
