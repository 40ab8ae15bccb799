"""TMA store: convert into epilogue buffers in shared memory, 128 bytes wide, then store with TMA.

An epilogue buffer is a line of 128 bytes for each row of C. The 128-byte swizzle of TMA places
16-byte piece ``p`` of line ``r`` at piece ``p ^ (r % 8)``::

    line 0   p0 p1 p2 p3 p4 p5 p6 p7
    line 1   p1 p0 p3 p2 p5 p4 p7 p6
    line 2   p2 p3 p0 p1 p6 p7 p4 p5
    ...

so that the eight 16-byte rows of an 8 x 8 matrix (``stmatrix``) fall into different banks.

``stmatrix.x4`` stores a block of 16 x 16 results of 16 bits as four matrices. Each matrix is one
register of each lane, laid out as an accumulator fragment (:mod:`.wgmma`)::

                  columns 0-7   columns 8-15
    rows 0-7      packed[0]     packed[2]       lane l gives the address of line l % 8 of matrix
    rows 8-15     packed[1]     packed[3]       l / 8: matrix 0 lanes 0-7, matrix 1 lanes 8-15, ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

from tvm import tirx
from tvm.backend.cuda.lang import SMEMPool
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import (
    Barriers,
    Scalar,
    Threads,
    as_register,
    copy,
    one_thread_of,
    quotient,
    remainder,
    store_pair,
    sync_threads_of,
)
from tvmopt.kernels.cuda.hopper.epilogue_values import EpilogueValues
from tvmopt.kernels.cuda.hopper.output import CONSUMER_BARRIER, Output, Store
from tvmopt.kernels.cuda.hopper.problem import BYTES
from tvmopt.kernels.cuda.hopper.tile_scheduler import Tile
from tvmopt.kernels.cuda.hopper.tma import tma_load, tma_store
from tvmopt.kernels.cuda.hopper.wgmma import Accumulators

_PACK = {name: f"cvt.rn.{dtypes.dtype(name).ptx}x2.f32" for name in dtypes.HALF_FLOATS}
_STMATRIX = "stmatrix.sync.aligned.m8n8.x{}.shared.b16"

# Results of two neighbouring columns: (first accumulator register, row of the warpgroup, column).
_Pair: TypeAlias = Callable[[int, Expr, Expr], list[Expr]]


class TmaStore(Store):
    """Stores a tile with TMA, one epilogue buffer of a warpgroup at a time."""

    def __init__(
        self, config: HopperConfig, output: Output, threads: Threads, smem: SMEMPool
    ) -> None:
        super().__init__(config, output, threads, smem)
        c, size = config, BYTES[output.dtype]
        self._values = EpilogueValues(output)
        # Elements of a line.
        self._width = 128 // size
        shape = (c.consumer_warpgroups * c.epilogue_buffers, c.buffer_rows * self._width)
        self._buffers = smem.alloc(shape, output.dtype, align=1024)

    # -- residual --------------------------------------------------------------------------------

    def allocate_barriers(self, smem: SMEMPool) -> None:
        """Allocate an mbarrier of each warpgroup, for the loads of the residual."""
        if self._output.residual is not None:
            self._arrived = Barriers(smem, self._config.consumer_warpgroups)

    def init_barriers(self) -> None:
        """Initialise the mbarriers; for one thread."""
        if self._output.residual is not None:
            self._arrived.init(1)

    def start(self) -> None:
        """Emit the phase of the residual's mbarrier."""
        if self._output.residual is not None:
            self._phase = Scalar("int32", 0)

    def prefetch(self, tile: Tile) -> None:
        """Issue a warpgroup's TMA loads of the residual, once its stores have read the buffers."""
        if self._output.residual is None:
            return
        c, warpgroup = self._config, self._threads.warpgroup
        with one_thread_of(self._threads.warp):
            build.evaluate(T.ptx.cp.async_.bulk.wait_group.read(0))
            self._arrived.expect(warpgroup, c.epilogue_buffers * c.warpgroup_m * 128)
            for number in range(c.epilogue_buffers):
                tma_load(
                    self._buffers.ptr_to([warpgroup * c.epilogue_buffers + number, 0]),
                    self._output.residual_map,
                    self._output.tiling.corner(tile, warpgroup, number * self._width),
                    self._arrived.pointer(warpgroup),
                )

    def _residuals(self, buffer: Expr, line: Expr, column: Expr) -> list[Expr]:
        """Load two neighbouring residual elements from one line of a buffer."""
        if self._output.residual is None:
            return []
        dtype = str(self._output.residual.value.ty.dtype)
        pair = build.alloc_local([2], dtype)
        # The residual's dtype is as wide as the output's.
        copy(pair, self._buffers.ptr_to([buffer, self._swizzled(line, column)]), 2 * BYTES[dtype])
        return [pair[0], pair[1]]

    def _swizzled(self, line: Expr, column: Expr) -> Expr:
        """Return the element of a buffer where (line, column) lies."""
        size = BYTES[self._output.dtype]
        piece = quotient(column * size, 16) ^ remainder(line, 8)
        return line * self._width + piece * (16 // size) + remainder(column, 16 // size)

    # -- store -----------------------------------------------------------------------------------

    def store(self, tile: Tile, columns: range, accumulators: Accumulators) -> None:
        """Store these columns of a tile, at least 128 bytes of a row of C."""
        c = self._config
        if c.epilogue_aliases_ring:
            # Other warpgroups may still read the ring with wgmma.
            sync_threads_of(CONSUMER_BARRIER, c.consumer_warpgroups * 128)
        if c.swap_ab:
            self._store_swapped(tile, columns, accumulators)
        else:
            self._store_rows(tile, columns, accumulators)

    def drain(self) -> None:
        """Wait until the stores have read shared memory."""
        with one_thread_of(self._threads.warp):
            build.evaluate(T.ptx.cp.async_.bulk.wait_group.read(0))

    def _store_rows(self, tile: Tile, columns: range, accumulators: Accumulators) -> None:
        """Store with rows of the tile as rows of C: a buffer for every 128 bytes of columns."""
        c, output, warpgroup = self._config, self._output, self._threads.warpgroup
        first_row = build.Bind(tile.row + c.first_row_of(warpgroup))
        if output.residual is not None:
            self._arrived.wait(warpgroup, self._phase.value)
            self._phase.set(self._phase.value ^ 1)
        put = self._put_matrices if output.dtype in _PACK else self._put_pairs
        for number, begin in enumerate(range(columns.start, columns.stop, self._width)):
            # In a ragged width the last buffer overlaps the one before and stores it again.
            first = min(begin, columns.stop - self._width)

            def pair(
                index: int, row: Expr, column: Expr, number: int = number, first: int = first
            ) -> list[Expr]:
                sums = [accumulators[index], accumulators[index + 1]]
                own = warpgroup * c.epilogue_buffers + number
                residuals = self._residuals(own, row, column - number * self._width)
                done = self._values(
                    sums, tile, first_row + row, tile.column + column, True, residuals
                )
                return [as_register(d, output.dtype) for d in done]

            buffer = self._free_buffer(number)
            for m in range(c.m_atoms):
                put(buffer, m, first, accumulators, pair)
            self._send(buffer, output.tiling.corner(tile, warpgroup, first))

    def _store_swapped(self, tile: Tile, columns: range, accumulators: Accumulators) -> None:
        """Store with columns of the tile as rows of C: 64 tile rows are 128 bytes of a row of C."""
        corner = dataclasses.replace(tile, column=tile.column + columns.start)
        for m in range(self._config.m_atoms):
            buffer = self._free_buffer(m)
            for column in range(columns.start, columns.stop, 16):
                blocks = min(16, columns.stop - column) // 8
                line = column - columns.start
                self._put_transposed(buffer, tile, m, column, line, blocks, accumulators)
            self._send(buffer, self._output.tiling.corner(corner, self._threads.warpgroup, 64 * m))

    def _free_buffer(self, number: int) -> Expr:
        """Wait until the warpgroup's next buffer is free; return its index."""
        c, warpgroup = self._config, self._threads.warpgroup
        buffer = warpgroup * c.epilogue_buffers + number % c.epilogue_buffers
        if self._output.residual is None and (c.persistent or number >= c.epilogue_buffers):
            with one_thread_of(self._threads.warp):
                build.evaluate(T.ptx.cp.async_.bulk.wait_group.read(c.epilogue_buffers - 1))
            build.evaluate(T.cuda.warpgroup_sync(warpgroup + 1))
        return buffer

    def _send(self, buffer: Expr, corner: list[Expr]) -> None:
        """Issue the TMA store of a buffer that all threads of the warpgroup have written."""
        build.evaluate(T.ptx.fence.proxy.async_.shared__cta())
        build.evaluate(T.cuda.warpgroup_sync(self._threads.warpgroup + 1))
        with one_thread_of(self._threads.warp):
            tma_store(self._output.store_map, corner, self._buffers.ptr_to([buffer, 0]))
            build.evaluate(T.ptx.cp.async_.bulk.commit_group())

    # -- lanes -----------------------------------------------------------------------------------

    def _put_matrices(
        self, buffer: Expr, m: int, first: int, accumulators: Accumulators, pair: _Pair
    ) -> None:
        """Write 16-bit results, 64 rows x 64 columns: four stmatrix of 16 x 16 in each warp.

        Addresses of the lanes, for block ``q`` of 16 columns::

                              piece 2 q       piece 2 q + 1
            line .. + 7       lanes 0-7       lanes 16-23
            line + 8 .. + 15  lanes 8-15      lanes 24-31
        """
        warp, lane = self._threads.warp, self._threads.lane
        for q in range(4):
            packed = build.alloc_local([4], "uint32")
            for i in range(4):
                right, half = divmod(i, 2)
                row = m * 64 + warp * 16 + quotient(lane, 4) + 8 * half
                block = first + q * 16 + 8 * right
                low, high = pair(
                    accumulators.index(m, block, half), row, block + remainder(lane, 4) * 2
                )
                build.evaluate(T.ptx[_PACK[self._output.dtype]](packed[i], high, low))
            line = m * 64 + warp * 16 + remainder(lane, 16)
            piece = (q * 2 + quotient(lane, 16)) ^ remainder(lane, 8)
            self._stmatrix(buffer, line * 64 + piece * 8, packed, 4)

    def _put_pairs(
        self, buffer: Expr, m: int, first: int, accumulators: Accumulators, pair: _Pair
    ) -> None:
        """Write results that are not 16-bit floats, two neighbouring columns at once."""
        lane = self._threads.lane
        for block in range(0, self._width, 8):
            for half in range(2):
                row = m * 64 + self._threads.warp * 16 + quotient(lane, 4) + 8 * half
                column = block + remainder(lane, 4) * 2
                place = self._swizzled(row, column)
                index = accumulators.index(m, first + block, half)
                store_pair(
                    self._buffers.ptr_to([buffer, place]),
                    self._output.dtype,
                    *pair(index, row, first + column),
                )

    def _put_transposed(
        self, buffer: Expr, tile: Tile, m: int, column: int, line: int, blocks: int,
        accumulators: Accumulators,
    ) -> None:  # fmt: skip
        """Write one or two 16 x 8 blocks of 16-bit results, transposed (stmatrix.trans).

        A tile column becomes a line of the buffer, a warp's 16 tile rows become two pieces of it::

                              piece 2 w       piece 2 w + 1
            line .. + 7       packed[0]^T     packed[1]^T      lanes 0-7    lanes 8-15
            line + 8 .. + 15  packed[2]^T     packed[3]^T      lanes 16-23  lanes 24-31

        Args:
            buffer: The epilogue buffer.
            tile: The tile.
            m: 64-row wgmma tile.
            column: First tile column.
            line: First line of the buffer.
            blocks: Number of blocks; with one, the addresses of lanes 16 to 31 are ignored.
            accumulators: The accumulators.
        """
        t, lane = self._threads, self._threads.lane
        packed = build.alloc_local([2 * blocks], "uint32")
        for i in range(2 * blocks):
            right, half = divmod(i, 2)
            row = t.warpgroup * self._config.warpgroup_m + m * 64 + t.warp * 16
            row = build.Bind(tile.row + row + quotient(lane, 4) + 8 * half)
            col = build.Bind(tile.column + column + 8 * right + remainder(lane, 4) * 2)
            index = accumulators.index(m, column + 8 * right, half)
            low, high = (
                as_register(
                    self._values([accumulators[index + e]], tile, col + e, row, True)[0],
                    self._output.dtype,
                )
                for e in range(2)
            )
            build.evaluate(T.ptx[_PACK[self._output.dtype]](packed[i], high, low))
        own = line + remainder(lane, 8)
        if blocks == 2:
            own = line + 8 * quotient(lane, 16) + remainder(lane, 8)
        piece = (t.warp * 2 + remainder(quotient(lane, 8), 2)) ^ remainder(lane, 8)
        self._stmatrix(buffer, own * 64 + piece * 8, packed, f"{2 * blocks}.trans")

    def _stmatrix(self, buffer: Expr, place: Expr, packed: tirx.Buffer, kind: int | str) -> None:
        """Store 8 x 8 matrices; each lane gives the address of one of their lines."""
        registers = [packed[i] for i in range(int(packed.shape[0]))]
        build.evaluate(
            T.ptx[_STMATRIX.format(kind)](self._buffers.ptr_to([buffer, place]), *registers)
        )
