"""Fused attention for Hopper on one page (FlashAttention-3, arXiv 2407.08608).

Roles of the warpgroups of a thread block, for each tile of queries::

    producer (the last one)   Q, and K and V of each block of keys, from the last block on
    consumers, 64 queries     S = Q K^T of the last block, masked, softmax
                              for each further block:
                                  issue S = Q K^T of this block
                                  issue O += P V of the block before
                                  wait for S -> mask, softmax       (overlaps O += P V)
                                  wait for O -> round P, rescale O
                              O += P V of the first block, divide by the row sums, store

With two stages of Q, a consumer issues S of the next tile before the epilogue of this one.

With ``pingpong``, a consumer issues its GEMMs only after its predecessor has, so that the softmax
of one consumer overlaps the GEMMs of the others. The turn goes round by named barriers.

Masked blocks come first: they have the last keys. The loop over the others has no mask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from tvm import tirx
from tvm.backend.cuda.lang import SMEMPool
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.attention.problem import AttentionProblem
from tvmopt.kernels.cuda.hopper.attention.config import HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.attention.gemms import AttentionGemms
from tvmopt.kernels.cuda.hopper.attention.maps import AttentionMaps
from tvmopt.kernels.cuda.hopper.attention.masks import ScoreMask
from tvmopt.kernels.cuda.hopper.attention.operand_layout import OperandTile
from tvmopt.kernels.cuda.hopper.attention.output_store import OutputStore
from tvmopt.kernels.cuda.hopper.attention.ring import BlockEnd, TileRing
from tvmopt.kernels.cuda.hopper.attention.softmax import LOG2_E, OnlineSoftmax
from tvmopt.kernels.cuda.hopper.attention.tiles import QueryTile, QueryTileScheduler
from tvmopt.kernels.cuda.hopper.emit import (
    Scalar,
    arrive_at,
    const,
    device_entry,
    held,
    one_thread_of,
    set_registers,
    sync_threads_of,
    when,
)
from tvmopt.kernels.cuda.hopper.tma import tma_load
from tvmopt.kernels.cuda.toolchain.dependent_launch import wait_for_kernel_before

# First named barrier of the ping-pong; OutputStore.sync uses lower ones for the warpgroups.
_PINGPONG_BARRIER = 8


class AttentionKernel:
    """A fused attention kernel."""

    def __init__(
        self, problem: AttentionProblem, config: HopperAttentionConfig, maps: AttentionMaps,
        mask: tirx.Buffer | None,
    ) -> None:  # fmt: skip
        self._p, self._c, self._maps, self._mask_buffer = problem, config, maps, mask

    def emit(self) -> None:
        """Emit the device function."""
        with device_entry():
            self._emit()

    def _emit(self) -> None:
        p, c = self._p, self._c
        self._scheduler = QueryTileScheduler(p, c)
        t = self._threads = self._scheduler.launch()
        smem = SMEMPool()
        self._allocate(smem)
        with when(t.warpgroup < 1), one_thread_of(t.warp):
            for descriptor in self._maps.all():
                build.evaluate(T.ptx.prefetch.tensormap(T.address_of(descriptor)))
        with when(t.warpgroup == c.consumer_warpgroups), one_thread_of(t.warp):
            for ring in (self._q, self._k, self._v):
                ring.init_barriers(c.consumer_warpgroups)
            self._order.init_barrier()
        build.evaluate(T.ptx.fence.mbarrier_init.release.cluster())
        build.evaluate(T.cuda.cta_sync())
        build.evaluate(wait_for_kernel_before())
        for ring in (self._q, self._k, self._v):
            ring.start()
        with build.If(t.warpgroup < c.consumer_warpgroups):
            with build.Then():
                self._consumers()
            with build.Else():
                self._producer()

    def _allocate(self, smem: SMEMPool) -> None:
        p, c = self._p, self._c
        q_tile = OperandTile(c.tile_queries, p.head_size)
        self._q = TileRing(q_tile, p.dtype, c.query_stages, smem)
        self._k = TileRing(OperandTile(c.tile_keys, p.head_size), p.dtype, c.stages, smem)
        self._v = TileRing(OperandTile(c.tile_keys, p.value_size), p.dtype, c.stages, smem)
        out_tile = OperandTile(c.tile_queries, p.value_size)
        out = self._q.memory
        if c.own_output:
            out = smem.alloc((1, out_tile.elements), p.dtype, align=1024)
        self._store = OutputStore(out_tile, out, p.dtype, self._maps.out, self._threads)
        for ring in (self._q, self._k, self._v):
            ring.allocate_barriers(smem)
        self._order = BlockEnd(smem)
        smem.commit()

    # -- producer --------------------------------------------------------------------------------

    def _producer(self) -> None:
        """Producer warpgroup: one thread issues all TMA loads."""
        set_registers("dec", self._c.registers[0])
        q_head, k_head, v_head = self._p.first_heads
        load_k = functools.partial(self._load_block, self._k, self._maps.k, k_head)
        load_v = functools.partial(self._load_block, self._v, self._maps.v, v_head)
        with one_thread_of(self._threads.warp), self._scheduler.tiles() as tile:
            last = held(tile.blocks - 1)
            # K first: Q may wait for the store of the previous tile.
            load_k(last, tile)
            self._load(self._q, self._maps.q, tile.query, tile.head + q_head, tile)
            with build.serial(0, last) as i:
                load_k(last - 1 - i, tile)
                load_v(last - i, tile)
            load_v(const(0), tile)

    def _load_block(
        self, ring: TileRing, descriptor: Expr, first_head: int, block: Expr, tile: QueryTile
    ) -> None:
        head = tile.kv_head + first_head
        self._load(ring, descriptor, block * self._c.tile_keys, head, tile)

    def _load(
        self, ring: TileRing, descriptor: Expr, row: Expr, head: Expr, tile: QueryTile
    ) -> None:
        """Load a tile into the next stage, one TMA box for each swizzle atom of the head size."""
        layout, barrier = ring.tile, ring.acquire()
        row = held(row)
        for block in range(layout.blocks):
            tma_load(
                ring.memory.ptr_to([ring.stage, block * layout.rows * layout.width]),
                descriptor,
                [block * layout.width, row, head, tile.batch],
                barrier,
            )
        ring.advance()

    # -- consumers -------------------------------------------------------------------------------

    def _consumers(self) -> None:
        """Consumer warpgroups: both GEMMs and the softmax of each tile, and the epilogue."""
        p, c, t = self._p, self._c, self._threads
        set_registers("inc", c.registers[1])
        self._gemms = AttentionGemms(p.dtype, self._q, self._k, self._v, t)
        self._mask = ScoreMask(p, c.tile_keys, self._mask_buffer, t)
        factor = 1.0 if self._mask.is_additive else p.scale * LOG2_E
        self._softmax = OnlineSoftmax(self._gemms, p.dtype, factor, self._mask.guarded, c)
        self._accumulates = Scalar("int32", 0)
        if self._takes_turns:
            with when(t.warpgroup == c.consumer_warpgroups - 1):
                arrive_at(const(_PINGPONG_BARRIER), 256)
        if c.query_stages > 1:
            self._stored = Scalar("int32", 0)
            self._wait_operands()
            self._gemms.issue_scores()
            with self._scheduler.tiles_before_last() as tile:
                self._tile(tile, is_last=False)
            self._tile(self._scheduler.last_tile())
        else:
            with self._scheduler.tiles() as tile:
                self._tile(tile)
        self._store.wait_read()

    def _wait_operands(self) -> None:
        """Wait for Q of a tile, and for its last block of keys."""
        self._q.wait_full()
        self._k.wait_full()

    @property
    def _takes_turns(self) -> bool:
        return self._c.pingpong and self._c.consumer_warpgroups > 1

    def _tile(self, tile: QueryTile, *, is_last: bool = True) -> None:
        """Emit a tile; with two stages of Q, the first GEMM of the next one unless ``is_last``."""
        g, softmax, thread = self._gemms, self._softmax, self._threads.thread
        last = held(tile.blocks - 1)
        if self._c.query_stages == 1:
            self._wait_operands()
            g.issue_scores()
        g.wait_scores(0)
        self._k.release(thread)
        if self._mask.needed:
            self._mask.apply(g.scores, tile, last)
        if self._c.query_stages > 1 and not self._c.own_output:
            with when(self._stored.value > 0):
                self._store.release_read(self._q)
        softmax.first()
        softmax.pack()
        self._accumulates.set(0)
        if self._mask.every_block:
            self._blocks(last, lambda i: last - 1 - i, tile, masked=True)
        elif self._mask.guarded:
            whole = held(T.min(tile.whole_blocks, last))
            self._blocks(last - whole, lambda i: last - 1 - i, tile, masked=True)
            self._blocks(whole, lambda i: whole - 1 - i, tile, masked=False)
        else:
            self._blocks(last, lambda i: last - 1 - i, tile, masked=False)
        if self._c.query_stages > 1:
            self._end_and_begin(tile, is_last)
        else:
            self._end(tile)

    def _end(self, tile: QueryTile) -> None:
        """Emit the last GEMM of a tile and the epilogue."""
        g, store, thread = self._gemms, self._store, self._threads.thread
        if self._c.own_output:
            self._q.release(thread)
        self._v.wait_full()
        g.issue_output(self._accumulates.value > 0)
        g.wait_output()
        self._v.release(thread)
        self._softmax.finish()
        if self._c.own_output:
            store.wait_read()
            store.sync()
        store.store(g.output, tile, const(0))
        if not self._c.own_output:
            store.wait_read()
            store.sync()
            self._q.release(thread)

    def _end_and_begin(self, tile: QueryTile, is_last: bool) -> None:
        """Emit the last GEMM of a tile, the first one of the next tile, and the epilogue."""
        g = self._gemms
        self._v.wait_full()
        g.issue_output(self._accumulates.value > 0)
        own, stage = self._c.own_output, held(self._q.stage)
        if own:
            self._q.release(self._threads.thread)
        else:  # the output takes the memory of Q
            self._q.advance()
        if not is_last:
            self._wait_operands()
            g.issue_scores()
        g.wait_output(0 if is_last else 1)
        self._v.release(self._threads.thread)
        self._softmax.finish()
        if own:
            self._store.wait_read()
            self._store.sync()
        self._store.store(g.output, tile, const(0) if own else stage)
        self._stored.set(1)

    def _blocks(
        self, count: Expr, block: Callable[[Expr], Expr], tile: QueryTile, *, masked: bool
    ) -> None:
        """Emit the loop over ``count`` blocks of keys."""
        g, softmax, thread = self._gemms, self._softmax, self._threads.thread
        with build.serial(0, count) as i:
            self._k.wait_full()
            self._wait_turn()
            g.issue_scores()
            self._v.wait_full()
            g.issue_output(self._accumulates.value > 0)
            self._pass_turn()
            self._accumulates.set(1)
            g.wait_scores(1)
            self._k.release(thread)
            if masked:
                self._mask.apply(g.scores, tile, block(i))
            softmax.next()
            self._order.end_block()
            g.wait_output()
            self._v.release(thread)
            softmax.pack()
            softmax.rescale()

    def _wait_turn(self) -> None:
        """Wait until the preceding consumer warpgroup has issued its GEMMs."""
        if self._takes_turns:
            sync_threads_of(self._threads.warpgroup + _PINGPONG_BARRIER, 256)

    def _pass_turn(self) -> None:
        """Let the next consumer warpgroup issue its GEMMs."""
        if self._takes_turns:
            following = self._threads.warpgroup + 1
            last = following == self._c.consumer_warpgroups
            arrive_at(T.Select(last, const(0), following) + _PINGPONG_BARRIER, 256)
