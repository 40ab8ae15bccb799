"""Cluster split-K: reduce partial accumulators over distributed shared memory (DSMEM).

Each thread block finishes some columns of the tile. It stores its partial sums of all other columns
from registers into the shared memory of the block that finishes them. There the thread of the same
index reads them in its own fragment order. Two blocks, left and right half of the columns::

    block 0: p0 q0   ->   p0 + p1
    block 1: p1 q1   ->   q0 + q1
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import const, copy, when

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


class Exchange:
    """Partial accumulators of one thread block, and the buffer for the other blocks' ones.

    Args:
        config: The configuration.
        sums: Accumulator registers of a thread, float32 or uint32.
        arriving: Shared memory of ``config.dsmem_bytes``, 4-byte elements.
        rank: Rank of the block in the cluster.
        thread: Index of the thread among the consumers.
    """

    def __init__(
        self, config: HopperConfig, sums: Any, arriving: Any, rank: Any, thread: Any
    ) -> None:
        self._config, self._sums = config, sums
        self._dtype = str(sums.dtype)
        self._arriving, self._rank, self._thread = arriving, rank, thread

    def _pieces(self, rank: int) -> list[list[int]]:
        """Return the registers of the columns that ``rank`` finishes, in groups of four."""
        c = self._config
        columns = c.columns_of(rank)
        return [
            [m * c.tile_n // 2 + block * _REGISTERS + i for i in range(_REGISTERS)]
            for m in range(c.m_atoms)
            for block in range(columns.start // _BLOCK, columns.stop // _BLOCK)
        ]

    def _place(self, slot: Any, piece: int = 0) -> Any:
        """Return the buffer index of one 16-byte piece of a sender; threads are contiguous."""
        c = self._config
        most = c.m_atoms * c.block_columns // _BLOCK
        return ((slot * most + piece) * (c.consumer_warpgroups * 128) + self._thread) * _REGISTERS

    def give(self) -> None:
        """Send the partial sums that other blocks finish; their rings must be drained before."""
        kind, letter, suffix = _KINDS[self._dtype]
        source = _SEND.format(kind, letter, suffix)
        apart = self._config.consumer_warpgroups * 128 * _REGISTERS * 4
        for rank in range(self._config.cluster_split_k):
            with when(self._rank != rank):
                # A receiver has no slot for itself: ranks above it move down by one.
                slot = build.Bind(T.Select(self._rank < rank, self._rank, self._rank - 1))
                start = build.Bind(
                    T.cuda.func_call(
                        "map_to_block",
                        self._arriving.ptr_to([self._place(slot)]),
                        const(rank),
                        source_code=_MAP,
                        return_type="uint32",
                    )
                )
                for number, registers in enumerate(self._pieces(rank)):
                    build.evaluate(
                        T.cuda.func_call(
                            f"send_four_{suffix}",
                            start + const(number * apart, "uint32"),
                            *(self._sums[r] for r in registers),
                            source_code=source,
                        )
                    )

    def take(self, rank: int) -> None:
        """Add the received partial sums to the accumulators of block ``rank``."""
        found = build.alloc_local([_REGISTERS], self._dtype)
        for slot in range(self._config.cluster_split_k - 1):
            for number, registers in enumerate(self._pieces(rank)):
                copy(found, self._arriving.ptr_to([self._place(slot, number)]), 4 * _REGISTERS)
                for i, register in enumerate(registers):
                    build.buffer_store(self._sums, self._sums[register] + found[i], [register])
