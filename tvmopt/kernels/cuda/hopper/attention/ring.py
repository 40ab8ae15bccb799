"""Rings of shared-memory stages for K and V blocks, and the Q tile, with their mbarriers."""

from __future__ import annotations

from tvm.backend.cuda.lang import SMEMPool
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812

from tvmopt.kernels.cuda.hopper.attention.operand_layout import OperandTile
from tvmopt.kernels.cuda.hopper.emit import Barriers, const
from tvmopt.kernels.cuda.hopper.stage_ring import StageRing

_BYTES = 2


class TileRing(StageRing):
    """A ring of stages, each one tile.

    Attributes:
        tile: The tile of a stage.
        memory: Shared memory: stages x elements.
    """

    def __init__(self, tile: OperandTile, dtype: str, stages: int, smem: SMEMPool) -> None:
        super().__init__(stages)
        self.tile = tile
        self.memory = smem.alloc((stages, tile.elements), dtype, align=1024)

    def acquire(self) -> Expr:
        """Producer: wait until the stage is empty, expect its bytes; return its full mbarrier."""
        self.wait_empty()
        self.full.expect(self.stage, self.tile.elements * _BYTES)
        return self.full.pointer(self.stage)

    def release(self, thread: Expr) -> None:
        """Consumer: release the stage, one arrival a warpgroup, and go to the next one."""
        self.empty.arrive(self.stage, T.cast(thread < 1, "bool"))
        self.advance()


class BlockEnd:
    """Ends a basic block, so that ptxas keeps the order of instructions before and behind it.

    Within a basic block, ptxas moves a wait for wgmma up before exponentials that do not depend on
    it, and they no longer overlap the GEMM. The loop of an mbarrier wait ends the block. This
    mbarrier has had no arrival, so a wait for the phase before its first one returns at once.
    """

    def __init__(self, smem: SMEMPool) -> None:
        self._barrier = Barriers(smem, 1)

    def init_barrier(self) -> None:
        """Initialise the mbarrier; for one thread."""
        self._barrier.init(1)

    def end_block(self) -> None:
        """Emit the wait."""
        self._barrier.wait(const(0), const(1))
