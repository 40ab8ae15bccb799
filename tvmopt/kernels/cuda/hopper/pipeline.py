"""Pipeline: a ring of shared-memory stages, each with one K block of both operands.

The wait depth of wgmma delays the release: a stage is released when no wgmma in flight reads it.
"""

from __future__ import annotations

from tvm.backend.cuda.lang import SMEMPool
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import Threads, held, when
from tvmopt.kernels.cuda.hopper.multicast import Multicast
from tvmopt.kernels.cuda.hopper.stage_ring import StageRing


class Pipeline(StageRing):
    """The ring of stages.

    Attributes:
        left: Shared memory of the left operand (tile rows): stages x elements.
        right: Shared memory of the right operand (tile columns).
        multicast: Which thread blocks of the cluster load for which.
    """

    def __init__(self, config: HopperConfig, dtype: str, threads: Threads, smem: SMEMPool) -> None:
        super().__init__(config.stages)
        c = self._config = config
        self._threads = threads
        self.multicast = Multicast(c, threads.rank)
        self.left = smem.alloc((c.stages, c.parts * c.tile_m * c.tile_k), dtype, align=1024)
        self.right = smem.alloc((c.stages, c.parts * c.loaded_n * c.tile_k), dtype, align=1024)

    @property
    def arrivals(self) -> int:
        """Arrivals that empty a stage, of all thread blocks that receive this block's loads."""
        return self._config.tile_warpgroups * self.multicast.loaders

    def start_consumer(self) -> None:
        """Emit the rank of the thread block whose stage this thread releases."""
        if self._config.multicast_size > 1:
            self._loader = held(self.multicast.loader(self._threads.thread))

    def acquire(self, stage_bytes: Expr) -> Expr:
        """Producer: wait until the stage is empty, and expect ``stage_bytes``; return its index."""
        self.wait_empty()
        self.full.expect(self.stage, stage_bytes)
        return self.stage

    def wait_until_released(self) -> None:
        """Producer: wait until the other thread blocks of the cluster have released every stage.

        They arrive at empty barriers in this block's shared memory, which must outlive that.
        """
        if self._config.multicast_size > 1:
            with build.serial(0, self._stages):
                self.wait_empty()
                self.advance()

    def release_finished(self, slot: Expr, k: Expr) -> None:
        """Consumer: release the last stage that no wgmma in flight reads, in K block ``k``."""
        depth = self._config.wgmma_wait_depth
        if depth == 0:
            self._release(slot)
        else:
            with when(k >= depth):
                self.release_behind(depth)

    def release_last(self, k_blocks: Expr) -> None:
        """Consumer: release the other stages, once all ``k_blocks`` K blocks are multiplied."""
        for last in range(self._config.wgmma_wait_depth, 0, -1):
            with when(k_blocks >= last):
                self.release_behind(last)

    def release_behind(self, steps: int) -> None:
        """Consumer: release the stage that was current ``steps`` K blocks ago."""
        self._release(self._behind(steps))

    def _behind(self, steps: int) -> Expr:
        """Return the stage that was current ``steps`` K blocks ago."""
        slot = self.stage - steps
        return T.Select(slot < 0, slot + self._stages, slot)

    def _release(self, slot: Expr) -> None:
        """Arrive at the empty barriers of all thread blocks that load this stage."""
        thread = self._threads.thread
        if self._config.multicast_size == 1:
            self.empty.arrive(slot, thread < 1)
        else:
            self.empty.arrive_remote(slot, self._loader, thread < self.multicast.loaders)
