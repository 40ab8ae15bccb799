"""The two GEMMs of attention: S = Q K^T from shared memory, O += P V with P in registers.

The accumulator fragment of S (:mod:`tvmopt.kernels.cuda.hopper.wgmma`) and the fragment of a 16-bit
A operand in registers place the same elements in the same lanes. For K step ``k`` of O += P V::

    A register 0   row 0, columns 16 k + 0 ..      scores 8 k + 0, 8 k + 1
    A register 1   row 8                           scores 8 k + 2, 8 k + 3
    A register 2   row 0, columns 16 k + 8 ..      scores 8 k + 4, 8 k + 5
    A register 3   row 8                           scores 8 k + 6, 8 k + 7

So probabilities need no shuffle: register ``i`` of P packs registers ``2 i`` and ``2 i + 1`` of S.
"""

from __future__ import annotations

from tvm import tirx
from tvm.backend.cuda.tile_primitive.common import smem_desc_add_16B_offset as advance
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.attention.ring import TileRing
from tvmopt.kernels.cuda.hopper.emit import Threads, pin
from tvmopt.kernels.cuda.hopper.wgmma import matrix_descriptor


class AttentionGemms:
    """The wgmma of a consumer warpgroup, for 64 queries.

    Attributes:
        scores: Accumulator registers of S.
        output: Accumulator registers of O.
        probabilities: Pairs of 16-bit elements of P.
    """

    def __init__(
        self, dtype: str, queries: TileRing, keys: TileRing, values: TileRing, threads: Threads,
    ) -> None:  # fmt: skip
        self._queries, self._keys, self._values = queries, keys, values
        self._ptx = dtypes.dtype(dtype).ptx
        tile = keys.tile.rows
        self.scores: tirx.Buffer = build.alloc_local([tile // 2], "float32")
        self.output: tirx.Buffer = build.alloc_local([values.tile.padded // 2], "float32")
        self.probabilities: tirx.Buffer = build.alloc_local([tile // 4], "uint32")
        self._q = queries.tile.k_major()
        self._k, self._v = keys.tile.k_major(), values.tile.mn_major()
        self._q_start = matrix_descriptor(queries.memory, self._q)
        self._k_start = matrix_descriptor(keys.memory, self._k)
        self._v_start = matrix_descriptor(values.memory, self._v)
        self._own = threads.warpgroup * self._q.atom

    def issue_scores(self) -> None:
        """Issue and commit S = Q K^T of the current stages of Q and K."""
        tile = self._keys.tile
        left = advance(
            self._q_start[0], self._own + self._queries.stage * (self._queries.tile.elements // 8)
        )
        right = advance(self._k_start[0], self._keys.stage * (tile.elements // 8))
        name = self._name(tile.rows)
        build.evaluate(T.ptx.wgmma.fence.sync.aligned())
        for step, (a, b) in enumerate(zip(self._q.steps, self._k.steps, strict=True)):
            build.evaluate(
                T.ptx[name](
                    *_all(self.scores), advance(left, a), advance(right, b),
                    T.ptx.pred(int(step > 0)), 1, 1, 0, 0,
                )
            )  # fmt: skip
        self._commit()

    def issue_output(self, accumulate: Expr) -> None:
        """Issue and commit O += P V of the current stage of V; O = P V without ``accumulate``."""
        tile = self._values.tile
        right = advance(self._v_start[0], self._values.stage * (tile.elements // 8))
        name = self._name(tile.padded)
        build.evaluate(T.ptx.wgmma.fence.sync.aligned())
        for step, b in enumerate(self._v.steps):
            left = [self.probabilities[4 * step + i] for i in range(4)]
            added = T.ptx.pred(1) if step else T.ptx.pred(accumulate)
            build.evaluate(
                T.ptx[name](*_all(self.output), *left, advance(right, b), added, 1, 1, 1)
            )
        self._commit()

    def wait_scores(self, depth: int) -> None:
        """Wait until at most ``depth`` groups are in flight, none of them of S."""
        build.evaluate(T.ptx.wgmma.wait_group.sync.aligned(depth))
        pin(_all(self.scores))

    def wait_output(self, depth: int = 0) -> None:
        """Wait until at most ``depth`` groups are in flight, none of them of O."""
        build.evaluate(T.ptx.wgmma.wait_group.sync.aligned(depth))
        pin(_all(self.output))

    def _commit(self) -> None:
        build.evaluate(T.ptx.wgmma.commit_group.sync.aligned())

    def _name(self, columns: int) -> str:
        return f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{self._ptx}.{self._ptx}"


def _all(registers: tirx.Buffer) -> list[Expr]:
    return [registers[i] for i in range(int(registers.shape[0]))]
