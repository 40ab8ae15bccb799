"""Rings of shared-memory stages for K and V blocks, and the Q tile, with their mbarriers."""

from __future__ import annotations

from tvm.backend.cuda.lang import SMEMPool
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812

from tvmopt.kernels.cuda.hopper.attention.operand_layout import OperandTile
from tvmopt.kernels.cuda.hopper.emit import Barriers, Scalar, const, when

_BYTES = 2


class TileRing:
    """A ring of stages, each one tile, with a full and an empty mbarrier.

    Phases alternate as in :mod:`tvmopt.kernels.cuda.hopper.pipeline`. Producer and consumers visit
    the same tiles, and each thread keeps the current stage.

    Attributes:
        tile: The tile of a stage.
        memory: Shared memory: stages x elements.
    """

    def __init__(self, tile: OperandTile, dtype: str, stages: int, smem: SMEMPool) -> None:
        self.tile = tile
        self._stages = stages
        self.memory = smem.alloc((stages, tile.elements), dtype, align=1024)

    def allocate_barriers(self, smem: SMEMPool) -> None:
        """Allocate the mbarriers."""
        self._full = Barriers(smem, self._stages)
        self._empty = Barriers(smem, self._stages)

    def init_barriers(self, consumers: int) -> None:
        """Initialise the mbarriers; for one thread."""
        self._full.init(1)
        self._empty.init(consumers)

    def start(self) -> None:
        """Emit the current stage and its phase, of each thread."""
        self._stage = Scalar("int32", 0)
        self._phase = Scalar("int32", 0)

    @property
    def stage(self) -> Expr:
        """The current stage."""
        return self._stage.value if self._stages > 1 else const(0)

    def advance(self) -> None:
        """Go to the next stage."""
        if self._stages == 1:
            self._phase.set(self._phase.value ^ 1)
            return
        self._stage.set(self._stage.value + 1)
        with when(self._stage.value >= self._stages):
            self._stage.set(0)
            self._phase.set(self._phase.value ^ 1)

    def acquire(self) -> Expr:
        """Producer: wait until the stage is empty, expect its bytes; return its full mbarrier."""
        self._empty.wait(self.stage, self._phase.value ^ 1)
        self._full.expect(self.stage, self.tile.elements * _BYTES)
        return self._full.pointer(self.stage)

    def wait_full(self) -> None:
        """Consumer: wait until the stage is loaded."""
        self._full.wait(self.stage, self._phase.value)

    def release(self, thread: Expr) -> None:
        """Consumer: release the stage, one arrival a warpgroup, and go to the next one."""
        self._empty.arrive(self.stage, T.cast(thread < 1, "bool"))
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
