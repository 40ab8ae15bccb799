"""Pipeline: a ring of shared-memory stages, each with a full and an empty mbarrier.

A stage holds one K block of both operands. Its phases alternate::

    producer   wait empty[stage]   expect_tx + TMA loads        ->  full[stage] completes
    consumer                       wait full[stage], wgmma      ->  arrive empty[stage]

The wait depth of wgmma delays the release: a stage is released when no wgmma in flight reads it.
"""

from __future__ import annotations

from tvm.backend.cuda.lang import SMEMPool
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import Barriers, Scalar, Threads, held, when
from tvmopt.kernels.cuda.hopper.multicast import Multicast


class Pipeline:
    """The ring of stages.

    Attributes:
        left: Shared memory of the left operand (tile rows): stages x elements.
        right: Shared memory of the right operand (tile columns).
        full: An mbarrier for each stage; its TMA loads complete it.
        multicast: Which thread blocks of the cluster load for which.
    """

    def __init__(self, config: HopperConfig, dtype: str, threads: Threads, smem: SMEMPool) -> None:
        c = self._config = config
        self._threads = threads
        self.multicast = Multicast(c, threads.rank)
        self.left = smem.alloc((c.stages, c.tile_m * c.tile_k), dtype, align=1024)
        self.right = smem.alloc((c.stages, c.tile_n * c.tile_k), dtype, align=1024)

    def allocate_barriers(self, smem: SMEMPool) -> None:
        """Allocate the mbarriers."""
        self.full = Barriers(smem, self._config.stages)
        self._empty = Barriers(smem, self._config.stages)

    def init_barriers(self) -> None:
        """Initialise the mbarriers; for one thread."""
        self.full.init(1)
        # The consumers of all thread blocks that receive this block's loads release a stage.
        self._empty.init(self._config.consumer_warpgroups * self.multicast.loaders)

    def start(self) -> None:
        """Emit the current stage and its phase, of each thread."""
        self._stage = Scalar("int32", 0)
        self._phase = Scalar("int32", 0)

    def start_consumer(self) -> None:
        """Emit the rank of the thread block whose stage this thread releases."""
        if self._config.multicast_size > 1:
            self._loader = held(self.multicast.loader(self._threads.thread))

    def advance(self) -> None:
        """Go to the next stage."""
        self._stage.set(self._stage.value + 1)
        with when(self._stage.value >= self._config.stages):
            self._stage.set(0)
            self._phase.set(self._phase.value ^ 1)

    def acquire(self, stage_bytes: Expr) -> Expr:
        """Producer: wait until the stage is empty, and expect ``stage_bytes``; return its index."""
        slot = self._stage.value
        self._empty.wait(slot, self._phase.value ^ 1)
        self.full.expect(slot, stage_bytes)
        return slot

    def wait_until_released(self) -> None:
        """Producer: wait until the other thread blocks of the cluster have released every stage.

        They arrive at empty barriers in this block's shared memory, which must outlive that.
        """
        if self._config.multicast_size > 1:
            with build.serial(0, self._config.stages):
                self._empty.wait(self._stage.value, self._phase.value ^ 1)
                self.advance()

    def wait_full(self) -> Expr:
        """Consumer: wait until the stage is loaded; return its index."""
        slot = self._stage.value
        self.full.wait(slot, self._phase.value)
        return slot

    def release_finished(self, slot: Expr, k: Expr) -> None:
        """Consumer: release the last stage that no wgmma in flight reads, in K block ``k``."""
        depth = self._config.wgmma_wait_depth
        if depth == 0:
            self._release(slot)
        else:
            with when(k >= depth):
                self._release(self._behind(depth))

    def release_last(self, k_blocks: Expr) -> None:
        """Consumer: release the other stages, once all ``k_blocks`` K blocks are multiplied."""
        for last in range(self._config.wgmma_wait_depth, 0, -1):
            with when(k_blocks >= last):
                self._release(self._behind(last))

    def _behind(self, steps: int) -> Expr:
        """Return the stage that was current ``steps`` K blocks ago."""
        slot = self._stage.value - steps
        return T.Select(slot < 0, slot + self._config.stages, slot)

    def _release(self, slot: Expr) -> None:
        """Arrive at the empty barriers of all thread blocks that load this stage."""
        thread = self._threads.thread
        if self._config.multicast_size == 1:
            self._empty.arrive(slot, thread < 1)
        else:
            self._empty.arrive_remote(slot, self._loader, thread < self.multicast.loaders)
