"""Epilogue of attention: round O, write it to shared memory with stmatrix, store it with TMA."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.attention.operand_layout import OperandTile
from tvmopt.kernels.cuda.hopper.attention.ring import TileRing
from tvmopt.kernels.cuda.hopper.attention.tiles import QueryTile
from tvmopt.kernels.cuda.hopper.emit import Threads, one_thread_of, quotient, remainder
from tvmopt.kernels.cuda.hopper.tma import tma_store

_STMATRIX = "stmatrix.sync.aligned.m8n8.x4.shared.b16"


class OutputStore:
    """Stores the 64 rows of a warpgroup.

    Args:
        tile: The output tile in shared memory.
        memory: Its shared memory, stages x elements; a warpgroup writes its rows.
        descriptor: TMA descriptor of the output, boxes of 64 rows.
        axes: Order of the output's axes, see :class:`AttentionProblem`.
        threads: Thread indices.
    """

    def __init__(
        self, tile: OperandTile, memory: tirx.Buffer, dtype: str, descriptor: Expr,
        threads: Threads,
    ) -> None:  # fmt: skip
        self._tile, self._memory, self._map, self._threads = tile, memory, descriptor, threads
        self._pack = f"cvt.rn.{dtypes.dtype(dtype).ptx}x2.f32"

    def wait_read(self) -> None:
        """Wait, in the storing thread, until its stores have read shared memory."""
        with one_thread_of(self._threads.warp):
            build.evaluate(T.ptx.cp.async_.bulk.wait_group.read(0))

    def release_read(self, ring: TileRing) -> None:
        """Release the other one of two stages, in the storing thread, once its store has read it.

        Args:
            ring: The ring of Q, whose current stage is that of this tile.
        """
        with one_thread_of(self._threads.warp):
            build.evaluate(T.ptx.cp.async_.bulk.wait_group.read(0))
            ring.empty.arrive(1 - ring.stage, tirx.const(True, "bool"))

    def sync(self) -> None:
        """Synchronise the warpgroup."""
        build.evaluate(T.cuda.warpgroup_sync(self._threads.warpgroup + 1))

    def store(self, output: tirx.Buffer, tile: QueryTile, stage: Expr) -> None:
        """Write the accumulators to a stage in shared memory, and issue the TMA stores."""
        t, layout = self._threads, self._tile
        for first in range(0, layout.padded, 16):
            self._put(output, first, stage)
        build.evaluate(T.ptx.fence.proxy.async_.shared__cta())
        self.sync()
        with one_thread_of(t.warp):
            for block in range(layout.blocks):
                place = block * layout.rows * layout.width + t.warpgroup * (64 * layout.width)
                tma_store(
                    self._map,
                    [
                        block * layout.width, tile.query + t.warpgroup * 64, tile.head, tile.batch
                    ],
                    self._memory.ptr_to([stage, place]),
                )  # fmt: skip
            build.evaluate(T.ptx.cp.async_.bulk.commit_group())

    def _put(self, output: tirx.Buffer, first: int, stage: Expr) -> None:
        """Write 16 columns of a warp's 16 rows, four 8 x 8 matrices (:mod:`..tma_store`)."""
        t, layout = self._threads, self._tile
        packed = build.alloc_local([4], "uint32")
        for i in range(4):
            right, half = divmod(i, 2)
            at = first // 2 + 4 * right + 2 * half
            build.evaluate(T.ptx[self._pack](packed[i], output[at + 1], output[at]))
        block, column = divmod(first, layout.width)
        line = t.warpgroup * 64 + t.warp * 16 + remainder(t.lane, 16)
        # TMA swizzles 16-byte pieces by the index of the 128-byte line.
        per_line = layout.line // 16
        swizzle = quotient(remainder(t.lane, 8), 8 // per_line)
        piece = (column // 8 + quotient(t.lane, 16)) ^ swizzle
        place = block * layout.rows * layout.width + line * layout.width + piece * 8
        registers = [packed[i] for i in range(4)]
        build.evaluate(T.ptx[_STMATRIX](self._memory.ptr_to([stage, place]), *registers))
