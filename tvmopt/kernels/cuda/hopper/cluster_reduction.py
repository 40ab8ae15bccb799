"""Thread blocks that share the depth of one tile add up: each finishes some of its columns.

Every block sends its sums of the columns that others finish straight from registers into their
shared memory, where the thread of the same number finds them in its own order. before -> after, of
two blocks: sums ``p0, q0`` and ``p1, q1`` of the left and the right columns -> ``p0 + p1`` in the
first, ``q0 + q1`` in the second.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import Config
from tvmopt.kernels.cuda.hopper.emit import const, copy, when

# Neighbouring columns whose sums are in registers one after the other, and how many registers
# a group of 64 rows has of them.
_BLOCK, _REGISTERS = 8, 4
# By the registers' type: C's, and the constraint and suffix that PTX has for it.
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
    """The sums of one thread block, and where those of the others arrive.

    Args:
        config: How the tile is computed.
        sums: The registers of one thread, of float32 or uint32.
        arriving: Shared memory of ``config.exchange_bytes``, of four-byte elements.
        rank: The block's number in the cluster.
        thread: The thread's, of those that multiply.
    """

    def __init__(self, config: Config, sums: Any, arriving: Any, rank: Any, thread: Any) -> None:
        self._config, self._sums = config, sums
        self._dtype = str(sums.dtype)
        self._arriving, self._rank, self._thread = arriving, rank, thread

    def _pieces(self, rank: int) -> list[list[int]]:
        """The registers of what ``rank`` finishes, four by four."""
        c = self._config
        columns = c.columns_of(rank)
        return [
            [m * c.columns // 2 + block * _REGISTERS + i for i in range(_REGISTERS)]
            for m in range(c.atoms)
            for block in range(columns.start // _BLOCK, columns.stop // _BLOCK)
        ]

    def _place(self, slot: Any, piece: int = 0) -> Any:
        """Where a piece of a sender arrives; neighbouring threads' are neighbours."""
        c = self._config
        most = c.atoms * c.part_columns // _BLOCK
        return ((slot * most + piece) * (c.consumers * 128) + self._thread) * _REGISTERS

    def give(self) -> None:
        """Send the sums of what others finish; no one may use their shared memory otherwise."""
        kind, letter, suffix = _KINDS[self._dtype]
        source = _SEND.format(kind, letter, suffix)
        apart = self._config.consumers * 128 * _REGISTERS * 4
        for rank in range(self._config.ranks):
            with when(self._rank != rank):
                # Whoever is before the receiver has its own number there, others one less.
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
        """Add what arrived to the sums of what this block, number ``rank``, finishes."""
        found = build.alloc_local([_REGISTERS], self._dtype)
        for slot in range(self._config.ranks - 1):
            for number, registers in enumerate(self._pieces(rank)):
                copy(found, self._arriving.ptr_to([self._place(slot, number)]), 4 * _REGISTERS)
                for i, register in enumerate(registers):
                    build.buffer_store(self._sums, self._sums[register] + found[i], [register])
