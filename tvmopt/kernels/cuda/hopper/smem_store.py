"""Store through shared memory: spill the accumulators, then vector stores of whole rows of C.

Rows of C may have any width, which TMA stores may not.
"""

from __future__ import annotations

from contextlib import nullcontext

from tvm import tirx
from tvm.backend.cuda.lang import SMEMPool
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import HopperConfig, spilled_rounds
from tvmopt.kernels.cuda.hopper.emit import (
    Threads,
    as_register,
    copy,
    quotient,
    remainder,
    store_four,
    store_pair,
    sync_threads_of,
    when,
)
from tvmopt.kernels.cuda.hopper.epilogue_values import EpilogueValues
from tvmopt.kernels.cuda.hopper.output import CONSUMER_BARRIER, Output, Store
from tvmopt.kernels.cuda.hopper.tile_scheduler import Tile
from tvmopt.kernels.cuda.hopper.wgmma import Accumulators


class SmemStore(Store):
    """Stores a tile through shared memory."""

    def __init__(
        self, config: HopperConfig, output: Output, threads: Threads, smem: SMEMPool
    ) -> None:
        super().__init__(config, output, threads, smem)
        self._values = EpilogueValues(output)
        self._spilled = smem.alloc((config.spill_bytes // 4,), output.accumulator, align=1024)

    def store(self, tile: Tile, columns: range, accumulators: Accumulators) -> None:
        """Store these columns of a tile."""
        threads = self._config.consumer_warpgroups * 128
        # Other warpgroups may still read the ring with wgmma, or read the previous tile.
        sync_threads_of(CONSUMER_BARRIER, threads)
        columns = self._in_bounds(columns)
        self._spill(columns, accumulators)
        sync_threads_of(CONSUMER_BARRIER, threads)
        if columns:
            self._store_rows(tile, columns)

    def _in_bounds(self, columns: range) -> range:
        """Clip ``columns`` to the columns of C, if a single tile spans them all."""
        c, across = self._config, self._output.tiling.shape[-1]
        if c.swap_ab or not isinstance(across, int) or across > c.tile_n:
            return columns
        return range(columns.start, max(columns.start, min(columns.stop, across)))

    def _spill(self, columns: range, accumulators: Accumulators) -> None:
        """Store the accumulators of these columns to shared memory, in the row order of C.

        The fragment of a thread is in :mod:`.wgmma`. With swapped A and B a row of C is a column of
        the tile, so that neighbours in the fragment are ``spill_pitch`` apart.
        """
        c, t = self._config, self._threads
        for m in range(c.m_atoms):
            row = t.warpgroup * c.warpgroup_m + m * 64 + t.warp * 16 + quotient(t.lane, 4)
            for column in range(columns.start // 8 * 8, columns.stop, 8):
                for half in range(2):
                    index = accumulators.index(m, column, half)
                    col = column - columns.start + remainder(t.lane, 4) * 2
                    if c.swap_ab:
                        for e in range(2):
                            build.buffer_store(
                                self._spilled,
                                accumulators[index + e],
                                [(col + e) * c.spill_pitch + row + 8 * half],
                            )
                    else:
                        store_pair(
                            self._spilled.ptr_to([(row + 8 * half) * c.spill_pitch + col]),
                            self._output.accumulator,
                            accumulators[index],
                            accumulators[index + 1],
                        )

    def _store_rows(self, tile: Tile, columns: range) -> None:
        """Apply the epilogue and store the tile from shared memory, coalesced."""
        c, output, shape = self._config, self._output, self._output.tiling.shape
        here = tile.column + columns.start
        if c.swap_ab:
            (height, width), (top, begin) = (len(columns), c.tile_m), (here, tile.row)
        else:
            (height, width), (top, begin) = (c.tile_m, len(columns)), (tile.row, here)
        out = build.decl_buffer(shape, output.dtype, data=output.buffer.data)
        # The widest vector of which a row of C has a whole number.
        vector = next(v for v in (4, 2, 1) if int(shape[-1]) % v == 0)
        threads = c.consumer_warpgroups * 128
        vectors = height * width // vector
        rounds, in_flight = spilled_rounds(vectors, threads)
        me = build.Bind(self._threads.warpgroup * 128 + self._threads.thread)

        def load(number: Expr) -> tuple[Expr, Expr, tirx.Buffer]:
            row = build.Bind(quotient(number, width // vector))
            col = build.Bind(remainder(number, width // vector) * vector)
            sums = build.alloc_local([vector], output.accumulator)
            copy(sums, self._spilled.ptr_to([row * c.spill_pitch + col]), 4 * vector)
            return build.Bind(top + row), build.Bind(begin + col), sums

        def store(row: Expr, col: Expr, sums: tirx.Buffer) -> None:
            indices, bounds = output.tiling.place(tile, row, col)
            inside = [index < bound for index, bound in bounds if bound is not None]
            with when(tirx.all(*inside)) if inside else nullcontext():
                own = [sums[e] for e in range(vector)]
                done = self._values(own, tile, row, col, clamp=False)
                registers = [as_register(d, output.dtype) for d in done]
                if vector == 1:
                    build.buffer_store(out, done[0], indices)
                elif vector == 2:
                    store_pair(out.ptr_to(indices), output.dtype, *registers)
                else:
                    store_four(out.ptr_to(indices), output.dtype, registers)

        with build.serial(0, rounds // in_flight) as i:
            first = build.Bind(i * (threads * in_flight) + me)
            with when(first < vectors) if vectors % threads else nullcontext():
                # All loads are issued first: none waits for a store or for another load.
                loaded = [load(build.Bind(first + threads * e)) for e in range(in_flight)]
                for one in loaded:
                    store(*one)
