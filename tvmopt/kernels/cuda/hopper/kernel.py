"""The warp-specialised GEMM kernel on one page.

Roles of the warpgroups of a thread block, for each output tile::

    producer (the last one)      for each K block: wait empty[stage] -> expect bytes -> TMA loads
    consumers (all the others)   for each K block: wait full[stage] -> wgmma -> release the stage;
                                 then reduction over the cluster, epilogue, store

Both visit the same tiles. (stage, phase) runs on across tiles, so that in a persistent kernel the
loads of the next tile overlap the epilogue. With ping-pong (:mod:`.turns`) two consumer warpgroups
have every second tile each, and the main loop of one overlaps the epilogue of the other.

Each part is a module of that name. Loaders: :mod:`.gemm_loader`, :mod:`.im2col_loader`,
:mod:`.few_channels_loader`. Stores: :mod:`.tma_store`, :mod:`.smem_store`.
"""

from __future__ import annotations

import dataclasses

from tvm.backend.cuda.lang import SMEMPool
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.cluster_reduction import ClusterReduction, cluster_barrier
from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import (
    Threads,
    device_entry,
    held,
    one_thread_of,
    set_registers,
    when,
)
from tvmopt.kernels.cuda.hopper.loader import Loader
from tvmopt.kernels.cuda.hopper.output import Output, Store
from tvmopt.kernels.cuda.hopper.pipeline import Pipeline
from tvmopt.kernels.cuda.hopper.smem_store import SmemStore
from tvmopt.kernels.cuda.hopper.tile_scheduler import TileScheduler
from tvmopt.kernels.cuda.hopper.tma_store import TmaStore
from tvmopt.kernels.cuda.hopper.turns import Turns
from tvmopt.kernels.cuda.hopper.wgmma import Mma, SplitMma
from tvmopt.kernels.cuda.toolchain.dependent_launch import wait_for_kernel_before


@dataclasses.dataclass(frozen=True)
class HopperKernel:
    """A warp-specialised GEMM, or implicit-GEMM convolution.

    Attributes:
        config: Tile, pipeline, cluster, split-K.
        loader: TMA loads of both operands.
        output: Output tensor and epilogue.
        maps: TMA descriptors of both, to prefetch.
    """

    config: HopperConfig
    loader: Loader
    output: Output
    maps: list[Expr]

    def emit(self) -> None:
        """Emit the device function."""
        with device_entry():
            self._emit()

    def _emit(self) -> None:
        c, tiling = self.config, self.output.tiling
        scheduler = TileScheduler(c, tiling.extents(), self.loader.k_blocks, tiling.batch)
        threads = scheduler.launch()
        smem = SMEMPool()
        pipeline = Pipeline(c, self.loader.dtype, threads, smem)
        reduction, store = self._epilogue_parts(threads, smem)
        pipeline.allocate_barriers(smem)
        store.allocate_barriers(smem)
        smem.commit()
        # Different warps do these two at the same time.
        with when(threads.warpgroup < 1), one_thread_of(threads.warp):
            for descriptor in self.maps:
                build.evaluate(T.ptx.prefetch.tensormap(T.address_of(descriptor)))
        with when(threads.warpgroup == c.consumer_warpgroups), one_thread_of(threads.warp):
            pipeline.init_barriers(pipeline.arrivals)
            store.init_barriers()
        build.evaluate(T.ptx.fence.mbarrier_init.release.cluster())
        scheduler.sync_blocks()
        # Everything above touches only this thread block's shared memory, so it may overlap the
        # previous kernel (PDL).
        build.evaluate(wait_for_kernel_before())
        pipeline.start()
        with build.If(threads.warpgroup < c.consumer_warpgroups):
            with build.Then():
                self._consumers(scheduler, threads, pipeline, reduction, store)
            with build.Else():
                self._producer(scheduler, threads, pipeline)

    def _epilogue_parts(self, threads: Threads, smem: SMEMPool) -> tuple[ClusterReduction, Store]:
        """Allocate the cluster reduction buffer and the epilogue tile.

        The reduction buffer aliases the ring, which is drained then. So does the epilogue tile with
        ``epilogue_aliases_ring``. In a persistent kernel it has separate memory, because its
        stores overlap the loads of the next tile.
        """
        c, ring_end = self.config, smem.offset
        if c.cluster_split_k > 1 or c.epilogue_aliases_ring:
            smem.move_base_to(0)
        reduction = ClusterReduction(c, self.output.accumulator, threads, smem)
        if not c.epilogue_aliases_ring:
            smem.move_base_to(max(ring_end, smem.offset))
        store = (SmemStore if c.smem_store else TmaStore)(c, self.output, threads, smem)
        smem.move_base_to(max(ring_end, smem.offset))
        return reduction, store

    def _producer(self, scheduler: TileScheduler, threads: Threads, pipeline: Pipeline) -> None:
        """Producer warpgroup: one thread fills a stage for each K block of each tile."""
        set_registers("dec", self.config.registers[0])
        with one_thread_of(threads.warp):
            with scheduler.tiles() as tile:
                first, k_blocks = scheduler.k_range(tile)
                stage_bytes = held(self.loader.stage_bytes(tile))
                with build.serial(0, k_blocks) as k:
                    for turn in range(self.loader.group):
                        slot = pipeline.acquire(stage_bytes)
                        block = (first + k) * self.loader.group + turn
                        self.loader.load(pipeline, slot, block, tile)
                        pipeline.advance()
            pipeline.wait_until_released()
        if self.config.cluster_split_k > 1:  # the consumers' two barriers are of the whole cluster
            cluster_barrier()
            cluster_barrier(release=True)

    def _consumers(
        self, scheduler: TileScheduler, threads: Threads, pipeline: Pipeline,
        reduction: ClusterReduction, store: Store,
    ) -> None:  # fmt: skip
        """Consumer warpgroups: wgmma over all K blocks of each tile, then reduction and store."""
        set_registers("inc", self.config.registers[1])
        multiply = Mma if self.config.parts == 1 else SplitMma
        mma = multiply(self.config, self.loader, pipeline, threads)
        pipeline.start_consumer()
        store.start()
        turns = Turns(self.config, threads, pipeline, self.loader.k_blocks)
        turns.start()
        with scheduler.tiles(threads.warpgroup if self.config.pingpong else None) as tile:
            _, k_blocks = scheduler.k_range(tile)
            store.prefetch(tile)
            mma.multiply_tile(k_blocks, turns)
            reduction.reduce_and_store(tile, mma.accumulators, store)
        store.drain()
