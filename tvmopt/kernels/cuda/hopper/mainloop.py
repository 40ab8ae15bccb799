"""Warp-specialised main loop of the Hopper GEMM and implicit-GEMM convolution kernels.

Roles of the warpgroups in a thread block::

    consumer 0 .. consumers-1:  wait full[stage] -> wgmma -> arrive empty[stage]; then the epilogue
    producer (the last one):    wait empty[stage] -> expect_tx + TMA loads -> full[stage]

Both walk the same tiles; (stage, phase) runs on across tiles, so that loads of the next tile
overlap the epilogue of a persistent kernel.
"""

from __future__ import annotations

import abc
from typing import Any

from tvm.backend.cuda.lang import SMEMPool
from tvm.backend.cuda.tile_primitive.common import smem_desc_add_16B_offset as advance
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes
from tvmopt.kernels.cuda.hopper.cluster_reduction import Exchange
from tvmopt.kernels.cuda.hopper.config import K_BLOCK_BYTES, HopperConfig
from tvmopt.kernels.cuda.hopper.emit import (
    Barriers,
    Scalar,
    const,
    held,
    one_thread_of,
    quotient,
    remainder,
    set_registers,
    sync_cluster_relaxed,
    when,
)
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue
from tvmopt.kernels.cuda.hopper.epilogue_store import Storing
from tvmopt.kernels.cuda.hopper.epilogue_values import EpilogueTile
from tvmopt.kernels.cuda.hopper.multicast import Sharing
from tvmopt.kernels.cuda.hopper.parameters import Parameters
from tvmopt.kernels.cuda.hopper.problem import BYTES, ceil_div
from tvmopt.kernels.cuda.hopper.shared_layout import Lines, lines_of
from tvmopt.kernels.cuda.hopper.tile_scheduler import tile_of
from tvmopt.kernels.cuda.toolchain.dependent_launch import wait_for_kernel_before


class Kernel(Storing):
    """A GEMM-like kernel under construction.

    Attributes:
        batch: Batch extent, times the K slices of split-K through workspace.
        left_major: Whether the left operand (tile rows) is K-major.
        right_major: Whether the right operand (tile columns) is K-major.
        maps: TMA descriptors to prefetch.
        instructions: wgmma K steps (32 bytes each) in one pipeline stage.
    """

    batch = 1
    instructions = K_BLOCK_BYTES // 32
    left_major = True
    right_major = True
    maps: list[Any]

    def __init__(
        self, config: HopperConfig, dtype: str, out_dtype: str, steps: int, epilogue: Epilogue,
        parameters: Parameters,
    ) -> None:  # fmt: skip
        accumulator = dtypes.dtype(dtype).accumulator
        super().__init__(config, accumulator, out_dtype, epilogue, parameters)
        self.dtype = dtype
        self.steps = steps
        self.depth = K_BLOCK_BYTES // BYTES[dtype]

    @abc.abstractmethod
    def extents(self) -> tuple[Any, Any]:
        """Return rows and columns of the tiled problem, int32."""

    @abc.abstractmethod
    def load(self, slot: Any, step: Any, tile: EpilogueTile) -> None:
        """Issue the TMA loads of one pipeline stage."""

    # -- the grid ----------------------------------------------------------------------------

    def emit(self) -> None:
        """Emit the device function."""
        with (
            build.attr({"tirx.device_entry": True}),
            build.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}),
        ):
            self._device()

    def _device(self) -> None:
        """Emit the grid, the thread indices, shared memory, and the tile loop."""
        c = self.config
        rows, columns = self.extents()
        down = _tiles(rows, c.tile_m * c.cluster_m)
        across = _tiles(columns, c.tile_n * c.cluster_n)
        per_batch = down * across
        total = per_batch * self.batch
        shared = c.cluster_size
        if isinstance(total, int):
            groups = min(total, c.resident_clusters) if c.persistent else total
        else:
            groups = c.resident_clusters
        if shared == 1:
            block, rank = T.cta_id([groups]), const(0)
        else:
            block = held(T.cluster_id([groups]))
            rank = held(T.cta_id_in_cluster([shared]))
        self.group = T.warpgroup_id([c.consumer_warpgroups + 1])
        self.warp = T.warp_id_in_wg([4])
        self.lane = T.lane_id([32])
        self.thread = T.thread_id_in_wg([128])
        self.rank = rank
        self.sharing = Sharing(c, rank)
        self._shared_memory()
        self._walk(block, groups, total, per_batch, down, across)

    def _shared_memory(self) -> None:
        """Allocate the ring, the epilogue tile and the mbarriers; initialise the mbarriers."""
        c = self.config
        pool = SMEMPool()
        self.left_ring = pool.alloc((c.stages, c.tile_m * self.depth), self.dtype, align=1024)
        self.right_ring = pool.alloc((c.stages, c.tile_n * self.depth), self.dtype, align=1024)
        self._leaving_memory(pool)
        self.full = Barriers(pool, c.stages)
        self.empty = Barriers(pool, c.stages)
        if self.residual is not None:
            self.arriving = Barriers(pool, c.consumer_warpgroups)
        pool.commit()
        # Different warps do these two at the same time.
        with when(self.group < 1), one_thread_of(self.warp):
            for descriptor in self.maps:
                build.evaluate(T.ptx.prefetch.tensormap(T.address_of(descriptor)))
        with when(self.group == c.consumer_warpgroups), one_thread_of(self.warp):
            self.full.init(1)
            self.empty.init(c.consumer_warpgroups * self.sharing.loaders)
            if self.residual is not None:
                self.arriving.init(1)
        build.evaluate(T.ptx.fence.mbarrier_init.release.cluster())
        self._sync_blocks()
        # Everything above touches only this thread block's shared memory, so it may overlap the
        # previous kernel (PDL).
        build.evaluate(wait_for_kernel_before())

    def _leaving_memory(self, pool: SMEMPool) -> None:
        """Allocate the epilogue tile and the buffer of the cluster split-K reduction.

        The split-K buffer aliases the ring, which is drained then. So does the epilogue tile with
        ``config.epilogue_aliases_ring``. In a persistent kernel it has memory of its own, because
        its stores overlap the loads of the next tile.
        """
        c = self.config
        end = pool.offset
        if c.cluster_split_k > 1:
            pool.move_base_to(0)
            self.exchanged = pool.alloc((c.dsmem_bytes // 4,), self.accumulator, align=1024)
        elif c.epilogue_aliases_ring:
            pool.move_base_to(0)
        if not c.epilogue_aliases_ring:
            pool.move_base_to(max(end, pool.offset))
        if c.smem_store:
            self.leaving = pool.alloc((c.spill_bytes // 4,), self.accumulator, align=1024)
        else:
            shape = (
                c.consumer_warpgroups * c.epilogue_buffers,
                c.buffer_rows * (128 // BYTES[self.out_dtype]),
            )
            self.leaving = pool.alloc(shape, self.out_dtype, align=1024)
        pool.move_base_to(max(end, pool.offset))

    def _sync_blocks(self) -> None:
        if self.config.cluster_size > 1:
            sync_cluster_relaxed()
        else:
            build.evaluate(T.cuda.cta_sync())

    def _walk(
        self, block: Any, groups: int, total: Any, per_batch: Any, down: Any, across: Any
    ) -> None:
        """Emit the loop over tiles for the consumer warpgroups and for the producer thread."""
        c = self.config
        stage = Scalar("int32", 0)
        phase = Scalar("int32", 0)

        def tile(number: Any) -> EpilogueTile:
            inner = remainder(number, per_batch) if self.batch > 1 else number
            batch = quotient(number, per_batch) if self.batch > 1 else const(0)
            i, j = tile_of(inner, down, across, c.raster_group)
            i, j = i * c.cluster_m + self.sharing.above, j * c.cluster_n + self.sharing.left
            i, j, batch = held(i), held(j), held(batch)
            return EpilogueTile(held(i * c.tile_m), held(j * c.tile_n), batch, i)

        def for_tiles(body: Any) -> None:
            if not c.persistent:
                body(tile(block))
                return
            number = Scalar("int32", block)
            with build.While(number.value < total):
                body(tile(number.value))
                number.set(number.value + groups)

        def following() -> None:
            stage.set(stage.value + 1)
            with when(stage.value >= c.stages):
                stage.set(0)
                phase.set(phase.value ^ 1)

        self._stage, self._phase, self._following = stage, phase, following
        few, many = c.registers
        with build.If(self.group < c.consumer_warpgroups):
            with build.Then():
                if many:
                    set_registers("inc", many)
                self._prepare()
                for_tiles(self._consume)
                if not c.smem_store:
                    with one_thread_of(self.warp):
                        build.evaluate(T.ptx.cp.async_.bulk.wait_group.read(0))
            with build.Else():
                if few:
                    set_registers("dec", few)
                with one_thread_of(self.warp):
                    for_tiles(self._produce)
                    if c.multicast_size > 1:
                        self._wait_until_empty()
                if (
                    c.cluster_split_k > 1
                ):  # matches the two cluster barriers of the consumers in _exchange
                    self._meet()
                    self._meet(sent=True)

    def _wait_until_empty(self) -> None:
        """Wait until the other thread blocks of the cluster have released every stage.

        They arrive at empty barriers in this block's shared memory, which must outlive that.
        """
        with build.serial(0, self.config.stages):
            self.empty.wait(self._stage.value, self._phase.value ^ 1)
            self._following()

    def _meet(self, sent: bool = False) -> None:
        """Cluster barrier; with ``sent``, also make the DSMEM stores before it visible."""
        build.evaluate(T.cuda.warp_sync())
        if sent:
            build.evaluate(T.cuda.cluster_sync())
        else:
            sync_cluster_relaxed()

    def part(self, tile: EpilogueTile) -> Any:
        """Return the index of the K slice that this thread block computes."""
        return self.rank

    def _range(self, tile: EpilogueTile) -> tuple[Any, Any]:
        """Return the first K block of this thread block, and its number of K blocks."""
        split = self.config.split_k
        if split == 1:
            return const(0), const(self.steps)
        part = self.part(tile)
        first = held(quotient(part * self.steps, split))
        return first, held(quotient((part + 1) * self.steps, split) - first)

    def stage_bytes(self, tile: EpilogueTile) -> Any:
        """Return the transaction bytes of one stage; fewer in a ragged last tile."""
        return self.config.stage_bytes

    def _produce(self, tile: EpilogueTile) -> None:
        """Producer: fill a stage for each K block of the tile."""
        first, count = self._range(tile)
        expected = held(self.stage_bytes(tile))
        with build.serial(0, count) as k:
            slot = self._stage.value
            self.empty.wait(slot, self._phase.value ^ 1)
            self.full.expect(slot, expected)
            self.load(slot, first + k, tile)
            self._following()

    # -- the MMA main loop -------------------------------------------------------------------

    def _prepare(self) -> None:
        """Allocate the accumulators, and encode the matrix descriptors of the ring."""
        c = self.config
        self._sums = build.alloc_local(
            [c.m_atoms * c.tile_n // 2], "uint32" if self.accumulator == "int32" else "float32"
        )
        self._left = self._descriptor(self.left_ring, self.left_lines())
        self._right = self._descriptor(self.right_ring, lines_of(self.right_major, self.depth))
        if self.config.multicast_size > 1:
            self._loader = held(self.sharing.loader(self.thread))
        if self.residual is not None:
            self._residual_phase = Scalar("int32", 0)

    def left_lines(self) -> Lines:
        """Return the shared-memory layout of the left operand in a stage."""
        return lines_of(self.left_major, self.depth)

    def _descriptor(self, ring: Any, lines: Lines) -> Any:
        """Encode the wgmma matrix descriptor of a ring's first stage."""
        result = build.alloc_local([1], "uint64")
        build.evaluate(
            T.cuda.wgmma.encode_matrix_descriptor(
                T.address_of(result[0]),
                ring.ptr_to([0, 0]),
                lines.leading,
                lines.stride,
                lines.swizzle,
            )
        )
        return result

    def _multiply(self, slot: Any, first: Any) -> None:
        """Issue the wgmma of one stage; if not ``first``, they overwrite the accumulators."""
        c = self.config
        size = BYTES[self.dtype]
        per = c.tile_n // 2
        row = dtypes.dtype(self.dtype)
        types = f"{dtypes.dtype(row.accumulator).ptx}.{row.ptx}.{row.ptx}"
        name = f"wgmma.mma_async.sync.aligned.m64n{c.tile_n}k{32 // size}.{types}"
        group = c.m_atoms * 64 * K_BLOCK_BYTES // 16
        left = advance(self._left[0], slot * (c.tile_m * K_BLOCK_BYTES // 16) + self.group * group)
        right = advance(self._right[0], slot * (c.tile_n * K_BLOCK_BYTES // 16))
        rows, columns = self.left_lines(), lines_of(self.right_major, self.depth)
        for k in range(self.instructions):
            for m in range(c.m_atoms):
                args = [self._sums[m * per + i] for i in range(per)]
                args.append(advance(left, rows.steps[k] + m * rows.atom))
                args.append(advance(right, columns.steps[k]))
                args.append(T.ptx.pred(first) if k == 0 else T.ptx.pred(1))
                if row.is_float:
                    args += [1, 1]
                if size == 2:
                    args += [0 if self.left_major else 1, 0 if self.right_major else 1]
                build.evaluate(T.ptx[name](*args))

    def _release(self, slot: Any) -> None:
        """Arrive at the empty barriers of all thread blocks that load this stage."""
        c = self.config
        if c.multicast_size == 1:
            self.empty.arrive(slot, self.thread < 1)
        else:
            self.empty.arrive_remote(slot, self._loader, self.thread < self.sharing.loaders)

    def _behind(self, steps: int) -> Any:
        """Return the stage that was current ``steps`` K blocks ago."""
        slot = self._stage.value - steps
        return T.Select(slot < 0, slot + self.config.stages, slot)

    def _consume(self, tile: EpilogueTile) -> None:
        """Consumer: wgmma over all K blocks of the tile, then reduction and epilogue."""
        c = self.config
        _, count = self._range(tile)
        self._load_residual(tile)
        with build.serial(0, count) as k:
            slot = self._stage.value
            self.full.wait(slot, self._phase.value)
            build.evaluate(T.ptx.wgmma.fence.sync.aligned())
            self._multiply(slot, k > 0)
            build.evaluate(T.ptx.wgmma.commit_group.sync.aligned())
            build.evaluate(T.ptx.wgmma.wait_group.sync.aligned(c.wgmma_wait_depth))
            if c.wgmma_wait_depth == 0:
                self._release(slot)
            else:
                with when(k >= c.wgmma_wait_depth):
                    self._release(self._behind(c.wgmma_wait_depth))
            self._following()
        build.evaluate(T.ptx.wgmma.wait_group.sync.aligned(0))
        for last in range(c.wgmma_wait_depth, 0, -1):
            with when(count >= last):
                self._release(self._behind(last))
        if c.cluster_split_k > 1:
            self._exchange(tile)
        else:
            self._leave(tile, range(c.tile_n))

    def _exchange(self, tile: EpilogueTile) -> None:
        """Cluster split-K: reduce over DSMEM and store this block's share of the columns.

        The first cluster barrier ensures that every ring is drained: the partial sums of the other
        blocks land in place of the ring.
        """
        c = self.config
        me = build.Bind(self.group * 128 + self.thread)
        exchange = Exchange(c, self._sums, self.exchanged, self.rank, me)
        self._meet()
        exchange.give()
        self._meet(sent=True)
        for rank in range(c.cluster_split_k):
            if columns := c.columns_of(rank):
                with when(self.rank == rank):
                    exchange.take(rank)
                    self._leave(tile, columns)


def _tiles(extent: Any, tile: int) -> Any:
    if isinstance(extent, int):
        return ceil_div(extent, tile)
    return quotient(extent + (tile - 1), tile)
