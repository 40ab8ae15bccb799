"""TMA store epilogue: convert into a swizzled shared-memory tile 128 bytes wide, then TMA store.

The 128-byte swizzle places 16-byte chunk ``c`` of line ``r`` at chunk ``c ^ (r % 8)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.emit import (
    as_register,
    copy,
    one_thread_of,
    quotient,
    remainder,
    store_pair,
    tma_load,
    tma_store,
)
from tvmopt.kernels.cuda.hopper.epilogue_values import EpilogueTile, Finishing
from tvmopt.kernels.cuda.hopper.problem import BYTES
from tvmopt.kernels.cuda.hopper.residual import residual_of

_PACK = {name: f"cvt.rn.{dtypes.dtype(name).ptx}x2.f32" for name in dtypes.HALF_FLOATS}


class Sending(Finishing):
    """Part of a kernel that stores an output tile with TMA."""

    def _load_residual_ahead(self, tensor_of: Callable[[Any, str], Any]) -> list[Any]:
        """Prefetch a residual input with TMA, if the epilogue has one.

        The residual lands in the epilogue tile, which must therefore hold the whole output tile.

        Args:
            tensor_of: Returns the TMA descriptor of a tensor of the output's shape and of a dtype.

        Returns:
            The descriptors that this needs.
        """
        static = all(isinstance(e, int) for e in self.out_shape)
        if not static or not self.config.buffers_hold_tile(self.out_dtype):
            return []
        self.residual = residual_of(self.epilogue, self.out_shape, self.out_dtype)
        if self.residual is None:
            return []
        self.epilogue = self.residual.epilogue
        source = self.inputs[self.residual.number]
        self._residual_map = tensor_of(source, str(source.dtype))
        return [self._residual_map]

    def _load_residual(self, tile: EpilogueTile) -> None:
        """Issue a warpgroup's TMA loads of the residual, once its stores have read the buffers."""
        if self.residual is None:
            return
        c = self.config
        with one_thread_of(self.warp):
            build.evaluate(T.ptx.cp.async_.bulk.wait_group.read(0))
            self.arriving.expect(self.group, c.epilogue_buffers * 64 * c.m_atoms * 128)
            for chunk in range(c.epilogue_buffers):
                tma_load(
                    self.leaving.ptr_to([self.group * c.epilogue_buffers + chunk, 0]),
                    self._residual_map,
                    self.corner_of(tile, self.group, chunk * (128 // BYTES[self.out_dtype])),
                    self.arriving.pointer(self.group),
                )

    def _residuals(self, buffer: Any, line: Any, column: Any) -> list[Any]:
        """Load two neighbouring residual elements from one line of a 128-byte-wide buffer."""
        if self.residual is None:
            return []
        dtype = str(self.residual.value.ty.dtype)
        size = BYTES[dtype]
        piece = quotient(column * size, 16) ^ remainder(line, 8)
        place = line * (128 // size) + piece * (16 // size) + remainder(column, 16 // size)
        found = build.alloc_local([2], dtype)
        copy(found, self.leaving.ptr_to([buffer, place]), 2 * size)  # dtypes are equally wide
        return [found[0], found[1]]

    def _send(self, tile: EpilogueTile, columns: range) -> None:
        """Convert accumulators into shared memory and store them with TMA.

        Args:
            tile: The tile.
            columns: Which of its columns, at least 128 bytes of a row.
        """
        c = self.config
        width = 128 // BYTES[self.out_dtype]
        per = c.tile_n // 2
        first_row = build.Bind(tile.row + self.group * (64 * c.m_atoms))

        def pair(index: int, row: Any, column: Any) -> list[Any]:
            sums = [self._sum(index), self._sum(index + 1)]
            chunk = self._chunk
            residuals = self._residuals(
                self.group * c.epilogue_buffers + chunk, row, column - chunk * width
            )
            done = self._finish(sums, tile, first_row + row, tile.column + column, True, residuals)
            return [as_register(d, self.out_dtype) for d in done]

        if self.residual is not None:
            self.arriving.wait(self.group, self._residual_phase.value)
            self._residual_phase.set(self._residual_phase.value ^ 1)
        for chunk, begin in enumerate(range(columns.start, columns.stop, width)):
            self._chunk = chunk
            # In a ragged width the last chunk overlaps the one before and stores it again.
            first = min(begin, columns.stop - width)

            def fill(buffer: Any, first: int = first) -> None:
                for m in range(c.m_atoms):
                    base = m * per + first // 2
                    if self.out_dtype in _PACK:
                        self._matrices(buffer, m, base, first, pair)
                    else:
                        self._pairs(buffer, m, base, first, pair)

            self._send_chunk(fill, chunk, self.corner_of(tile, self.group, first))

    def _send_chunk(self, fill: Callable[[Any], None], chunk: int, corner: list[Any]) -> None:
        """Wait for a free buffer, ``fill`` it, and issue its TMA store."""
        c = self.config
        buffer = self.group * c.epilogue_buffers + chunk % c.epilogue_buffers
        if self.residual is None and (c.persistent or chunk >= c.epilogue_buffers):
            with one_thread_of(self.warp):
                build.evaluate(T.ptx.cp.async_.bulk.wait_group.read(c.epilogue_buffers - 1))
            build.evaluate(T.cuda.warpgroup_sync(self.group + 1))
        fill(buffer)
        build.evaluate(T.ptx.fence.proxy.async_.shared__cta())
        build.evaluate(T.cuda.warpgroup_sync(self.group + 1))
        with one_thread_of(self.warp):
            tma_store(self.out_map, corner, self.leaving.ptr_to([buffer, 0]))
            build.evaluate(T.ptx.cp.async_.bulk.commit_group())

    def _send_exchanged(self, tile: EpilogueTile, columns: range) -> None:
        """Like :meth:`_send` with swapped A and B: 64 tile rows are 128 bytes of a row of C."""
        first = dataclasses.replace(tile, column=tile.column + columns.start)
        for m in range(self.config.m_atoms):

            def fill(buffer: Any, m: int = m) -> None:
                for column in range(columns.start, columns.stop, 16):
                    blocks = min(16, columns.stop - column) // 8
                    self._turned(buffer, tile, m, column, column - columns.start, blocks)

            self._send_chunk(fill, m, self.corner_of(first, self.group, 64 * m))

    def _turned(
        self, buffer: Any, tile: EpilogueTile, m: int, column: int, line: int, blocks: int
    ) -> None:
        """Transpose one or two 16 x 8 blocks of 16-bit results into the buffer (stmatrix.trans).

        Each tile column becomes a line of the buffer. Matrices of a warp, with two blocks::

            packed[0]: rows 0-7,  columns 0-7      packed[2]: rows 0-7,  columns 8-15
            packed[1]: rows 8-15, columns 0-7      packed[3]: rows 8-15, columns 8-15

        Lane ``l`` gives the address of line ``l % 8`` of matrix ``l / 8``.
        """
        lane = self.lane
        packed = build.alloc_local([2 * blocks], "uint32")
        for i in range(2 * blocks):
            row = self.group * (64 * self.config.m_atoms) + m * 64 + self.warp * 16
            row = build.Bind(tile.row + row + quotient(lane, 4) + 8 * (i % 2))
            col = build.Bind(tile.column + column + 8 * (i // 2) + remainder(lane, 4) * 2)
            index = m * self.config.tile_n // 2 + column // 2 + 2 * i
            ends = [
                self._finish([self._sum(index + e)], tile, col + e, row, True)[0] for e in range(2)
            ]
            low, high = (as_register(end, self.out_dtype) for end in ends)
            build.evaluate(T.ptx[_PACK[self.out_dtype]](packed[i], high, low))
        there = line + 8 * quotient(lane, 16) + remainder(lane, 8)
        piece = (self.warp * 2 + remainder(quotient(lane, 8), 2)) ^ remainder(lane, 8)
        if blocks == 1:  # lanes 16 to 31: stmatrix.x2 ignores their addresses
            there = line + remainder(lane, 8)
        build.evaluate(
            T.ptx[f"stmatrix.sync.aligned.m8n8.x{2 * blocks}.trans.shared.b16"](
                self.leaving.ptr_to([buffer, there * 64 + piece * 8]),
                *(packed[i] for i in range(2 * blocks)),
            )
        )

    def _matrices(self, buffer: Any, m: int, base: int, column: int, pair: Any) -> None:
        """Store 16-bit results with stmatrix, four 8 x 8 matrices (16 x 16 elements) at once.

        Matrices of a warp::

            packed[0]: rows 0-7,  columns 0-7      packed[2]: rows 0-7,  columns 8-15
            packed[1]: rows 8-15, columns 0-7      packed[3]: rows 8-15, columns 8-15

        Lane ``l`` gives the address of line ``l % 8`` of matrix ``l / 8``.
        """
        lane = self.lane
        for q in range(4):
            packed = build.alloc_local([4], "uint32")
            for i in range(4):
                row = m * 64 + self.warp * 16 + quotient(lane, 4) + 8 * (i % 2)
                col = column + q * 16 + 8 * (i // 2) + remainder(lane, 4) * 2
                index = base + q * 8 + 2 * i
                low, high = pair(index, row, col)
                build.evaluate(T.ptx[_PACK[self.out_dtype]](packed[i], high, low))
            line = m * 64 + self.warp * 16 + remainder(lane, 16)
            piece = (q * 2 + quotient(lane, 16)) ^ remainder(lane, 8)
            build.evaluate(
                T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"](
                    self.leaving.ptr_to([buffer, line * 64 + piece * 8]),
                    packed[0], packed[1], packed[2], packed[3],
                )
            )  # fmt: skip

    def _pairs(self, buffer: Any, m: int, base: int, column: int, pair: Any) -> None:
        """Store results that are not 16-bit floats, two neighbours at once."""
        size = BYTES[self.out_dtype]
        width = 128 // size
        lane = self.lane
        for j in range(width // 8):
            for h in range(2):
                row = m * 64 + self.warp * 16 + quotient(lane, 4) + 8 * h
                col = j * 8 + remainder(lane, 4) * 2
                index = base + j * 4 + 2 * h
                piece = quotient(col * size, 16) ^ remainder(row, 8)
                place = row * width + piece * (16 // size) + remainder(col, 16 // size)
                store_pair(
                    self.leaving.ptr_to([buffer, place]),
                    self.out_dtype,
                    *pair(index, row, column + col),
                )
