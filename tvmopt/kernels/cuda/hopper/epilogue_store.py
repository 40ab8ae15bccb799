"""Epilogue store: write the output tile with TMA, or through shared memory with vector stores."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.emit import (
    as_register,
    copy,
    quotient,
    remainder,
    store_four,
    store_pair,
    sync_threads_of,
    when,
)
from tvmopt.kernels.cuda.hopper.epilogue_values import EpilogueTile
from tvmopt.kernels.cuda.hopper.problem import ceil_div
from tvmopt.kernels.cuda.hopper.tma_store import Sending

# How many vectors of the shared-memory tile a thread loads before it stores them.
_TOGETHER = (4, 2, 1)


class Storing(Sending):
    """Part of a kernel that stores an output tile."""

    def _leave(self, tile: EpilogueTile, columns: range) -> None:
        """Store these columns of the tile."""
        c = self.config
        threads = c.consumer_warpgroups * 128
        if c.smem_store or c.epilogue_aliases_ring:
            # Other warpgroups may still read the ring with wgmma, or read the previous tile.
            sync_threads_of(8, threads)
        if not c.smem_store:
            (self._send_exchanged if c.swap_ab else self._send)(tile, columns)
            return
        columns = self._real(columns)
        self._keep(columns)
        sync_threads_of(8, threads)
        if columns:
            self._store_staged(tile, columns)

    def _real(self, columns: range) -> range:
        """Clip ``columns`` to the columns of C, if a single tile spans them all."""
        c, across = self.config, self.out_shape[-1]
        if c.swap_ab or not isinstance(across, int) or across > c.tile_n:
            return columns
        return range(columns.start, max(columns.start, min(columns.stop, across)))

    def _keep(self, columns: range) -> None:
        """Spill the accumulators of these columns to shared memory, in the row order of C."""
        c = self.config
        per = c.tile_n // 2
        for m in range(c.m_atoms):
            row = self.group * (64 * c.m_atoms) + m * 64 + self.warp * 16 + quotient(self.lane, 4)
            for j in range(columns.start // 8, ceil_div(columns.stop, 8)):
                for h in range(2):
                    index = m * per + j * 4 + 2 * h
                    col = j * 8 - columns.start + remainder(self.lane, 4) * 2
                    if c.swap_ab:
                        for e in range(2):
                            build.buffer_store(
                                self.leaving,
                                self._sum(index + e),
                                [(col + e) * c.spill_pitch + row + 8 * h],
                            )
                    else:
                        store_pair(
                            self.leaving.ptr_to([(row + 8 * h) * c.spill_pitch + col]),
                            self.accumulator,
                            self._sum(index),
                            self._sum(index + 1),
                        )

    def _store_staged(self, tile: EpilogueTile, columns: range) -> None:
        """Apply the epilogue and store the tile from shared memory, coalesced."""
        c = self.config
        here = tile.column + columns.start
        if c.swap_ab:
            (height, width), (top, begin) = (len(columns), c.tile_m), (here, tile.row)
        else:
            (height, width), (top, begin) = (c.tile_m, len(columns)), (tile.row, here)
        across = int(self.out_shape[-1])
        out = build.decl_buffer(self.out_shape, self.out_dtype, data=self.out.data)
        # The widest vector of which a row of C has a whole number.
        at_once = next(v for v in (4, 2, 1) if across % v == 0)
        threads = c.consumer_warpgroups * 128
        pieces = height * width // at_once
        rounds = ceil_div(pieces, threads)
        together = 1 if pieces % threads else next(v for v in _TOGETHER if rounds % v == 0)
        me = build.Bind(self.group * 128 + self.thread)

        def load(piece: Any) -> tuple[Any, Any, Any]:
            row = build.Bind(quotient(piece, width // at_once))
            col = build.Bind(remainder(piece, width // at_once) * at_once)
            kept = build.alloc_local([at_once], self.accumulator)
            copy(kept, self.leaving.ptr_to([row * c.spill_pitch + col]), 4 * at_once)
            return build.Bind(top + row), build.Bind(begin + col), kept

        def store(row: Any, col: Any, kept: Any) -> None:
            indices, bounds = self.place(tile, row, col)
            inside = [index < bound for index, bound in bounds if bound is not None]
            with when(tirx.all(*inside)) if inside else nullcontext():
                sums = [kept[e] for e in range(at_once)]
                done = self._finish(sums, tile, row, col, clamp=False)
                registers = [as_register(d, self.out_dtype) for d in done]
                if at_once == 1:
                    build.buffer_store(out, done[0], indices)
                elif at_once == 2:
                    store_pair(out.ptr_to(indices), self.out_dtype, *registers)
                else:
                    store_four(out.ptr_to(indices), self.out_dtype, registers)

        with build.serial(0, rounds // together) as i:
            first = build.Bind(i * (threads * together) + me)
            with when(first < pieces) if pieces % threads else nullcontext():
                # All loads are issued first: none waits for a store or for another load.
                loaded = [load(build.Bind(first + threads * e)) for e in range(together)]
                for one in loaded:
                    store(*one)
