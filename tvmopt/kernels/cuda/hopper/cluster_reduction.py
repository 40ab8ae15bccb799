"""Cluster split-K: reduce partial accumulators over distributed shared memory (DSMEM).

Each thread block reduces and stores some columns of the tile. It writes its partial sums of all
other columns from registers into the shared memory of the block that reduces them. There the thread
of the same index reads them in its own fragment order. Two blocks, two halves of the columns::

    block 0: p0 q0   ->   p0 + p1
    block 1: p1 q1   ->   q0 + q1
"""

from __future__ import annotations

from tvm import tirx
from tvm.backend.cuda.lang import SMEMPool
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import Threads, const, copy, sync_cluster_relaxed, when
from tvmopt.kernels.cuda.hopper.output import Store
from tvmopt.kernels.cuda.hopper.tile_scheduler import Tile
from tvmopt.kernels.cuda.hopper.wgmma import Accumulators

# Columns of one 8-column block of the accumulator fragment, and a thread's registers of it for
# 64 rows.
_BLOCK, _REGISTERS = 8, 4
# By register dtype: the CUDA type, the asm constraint and the PTX suffix.
_KINDS = {"float32": ("float", "f", "f32"), "uint32": ("unsigned", "r", "u32")}
_MAP = """
__forceinline__ __device__ unsigned map_to_block(void* mine, int rank) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there) : "r"((unsigned)__cvta_generic_to_shared(mine)), "r"(rank));
  return there;
}
"""
_SEND = """
__forceinline__ __device__ void send_four_{2}(unsigned to, {0} a, {0} b, {0} c, {0} d) {{
  asm volatile("st.shared::cluster.v4.{2} [%0], {{%1, %2, %3, %4}};"
               : : "r"(to), "{1}"(a), "{1}"(b), "{1}"(c), "{1}"(d) : "memory");
}}
"""


class ClusterReduction:
    """Reduces the partial accumulators of a cluster's thread blocks.

    Without cluster split-K there is nothing to reduce: the tile is stored as it is.

    Args:
        config: The configuration.
        accumulator: Dtype of the accumulators.
        threads: Thread indices.
        smem: Shared memory; the other blocks' partial accumulators land in it.
    """

    def __init__(
        self, config: HopperConfig, accumulator: str, threads: Threads, smem: SMEMPool
    ) -> None:
        self._config, self._threads = config, threads
        if config.cluster_split_k > 1:
            self._received = smem.alloc((config.dsmem_bytes // 4,), accumulator, align=1024)

    def reduce_and_store(self, tile: Tile, accumulators: Accumulators, store: Store) -> None:
        """Reduce a tile over the cluster, and store this block's share of the columns.

        The first cluster barrier ensures that every ring is drained: the partial accumulators of
        the other blocks land in place of the ring.
        """
        c, rank = self._config, self._threads.rank
        if c.cluster_split_k == 1:
            store.store(tile, range(c.tile_n), accumulators)
            return
        me = build.Bind(self._threads.warpgroup * 128 + self._threads.thread)
        cluster_barrier()
        self._send(accumulators.registers, me)
        cluster_barrier(release=True)
        for other in range(c.cluster_split_k):
            if columns := c.columns_of(other):
                with when(rank == other):
                    self._add_received(accumulators.registers, me, other)
                    store.store(tile, columns, accumulators)

    def _pieces(self, rank: int) -> list[list[int]]:
        """Return the registers of the columns that ``rank`` stores, in groups of four."""
        c = self._config
        columns = c.columns_of(rank)
        return [
            [m * c.tile_n // 2 + block * _REGISTERS + i for i in range(_REGISTERS)]
            for m in range(c.m_atoms)
            for block in range(columns.start // _BLOCK, columns.stop // _BLOCK)
        ]

    def _place(self, thread: Expr, slot: Expr | int, piece: int = 0) -> Expr:
        """Return the buffer index of one 16-byte piece of a sender; threads are contiguous."""
        c = self._config
        most = c.m_atoms * c.block_columns // _BLOCK
        return ((slot * most + piece) * (c.consumer_warpgroups * 128) + thread) * _REGISTERS

    def _send(self, registers: tirx.Buffer, thread: Expr) -> None:
        """Send the partial sums that other blocks store; their rings must be drained before."""
        kind, letter, suffix = _KINDS[str(registers.dtype)]
        source = _SEND.format(kind, letter, suffix)
        own = self._threads.rank
        piece_bytes = self._config.consumer_warpgroups * 128 * _REGISTERS * 4
        for rank in range(self._config.cluster_split_k):
            with when(own != rank):
                # A receiver has no slot for itself: ranks above it move down by one.
                slot = build.Bind(T.Select(own < rank, own, own - 1))
                start = build.Bind(
                    T.cuda.func_call(
                        "map_to_block",
                        self._received.ptr_to([self._place(thread, slot)]),
                        const(rank),
                        source_code=_MAP,
                        return_type="uint32",
                    )
                )
                for number, piece in enumerate(self._pieces(rank)):
                    build.evaluate(
                        T.cuda.func_call(
                            f"send_four_{suffix}",
                            start + const(number * piece_bytes, "uint32"),
                            *(registers[r] for r in piece),
                            source_code=source,
                        )
                    )

    def _add_received(self, registers: tirx.Buffer, thread: Expr, rank: int) -> None:
        """Add the received partial sums to the accumulators of block ``rank``."""
        found = build.alloc_local([_REGISTERS], str(registers.dtype))
        for slot in range(self._config.cluster_split_k - 1):
            for number, piece in enumerate(self._pieces(rank)):
                place = self._place(thread, slot, number)
                copy(found, self._received.ptr_to([place]), 4 * _REGISTERS)
                for i, register in enumerate(piece):
                    build.buffer_store(registers, registers[register] + found[i], [register])


def cluster_barrier(release: bool = False) -> None:
    """Emit a cluster barrier; with ``release``, DSMEM stores before it become visible."""
    build.evaluate(T.cuda.warp_sync())
    if release:
        build.evaluate(T.cuda.cluster_sync())
    else:
        sync_cluster_relaxed()
