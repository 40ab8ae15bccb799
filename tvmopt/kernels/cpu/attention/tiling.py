"""Tiling and layout of the attention kernel on a CPU."""

from __future__ import annotations

import dataclasses

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.attention import AttentionProblem, MaskedBy

# Most keys of a block: scores of 16 queries and 128 keys take 8 KiB of L1.
_MOST_KEYS = 128
# Keys of a block with a causal mask, which skips whole blocks.
_MOST_CAUSAL_KEYS = 64

_MOST_VECTORS, _MOST_ROWS = 3, 12
# Cycles to begin and end a register tile.
_TILE_CYCLES = 20.0


@dataclasses.dataclass(frozen=True)
class AttentionTiling:
    """Register and cache blocking.

    Attributes:
        lanes: Queries of one vector register of float32.
        vectors: Vector registers for the queries of a block.
        rows: Rows of accumulators: keys of a tile of S, values of a tile of the output.
        key_block: Keys of a block.
    """

    lanes: int
    vectors: int
    rows: int
    key_block: int

    @property
    def query_block(self) -> int:
        """Queries of a block."""
        return self.lanes * self.vectors


def attention_tiling(problem: AttentionProblem, arch: CpuArch) -> AttentionTiling:
    """Return the blocking of ``problem`` for ``arch`` with the fewest cycles of multiply-adds."""
    lanes = arch.lanes("float32")
    while lanes > problem.queries:
        lanes //= 2
    most = _MOST_KEYS if problem.causal is MaskedBy.NOTHING else _MOST_CAUSAL_KEYS
    found = [
        AttentionTiling(lanes, vectors, rows, min(most, problem.keys))
        for vectors in range(1, _MOST_VECTORS + 1)
        for rows in [min(_MOST_ROWS, (arch.vector_registers - vectors - 1) // vectors)]
        if lanes * vectors <= problem.queries
    ]
    return min(found, key=lambda tiling: multiply_cycles(problem, tiling, arch))


def multiply_cycles(problem: AttentionProblem, tiling: AttentionTiling, arch: CpuArch) -> float:
    """Return the predicted cycles of both GEMMs for all queries of one head.

    Register tiles issue FMAs and loads of L1 side by side.
    """
    blocks = -(-problem.queries // tiling.query_block)
    total = 0.0
    for rows, depth in ((problem.keys, problem.head_size), (problem.value_size, problem.keys)):
        for count, size in balanced(rows, tiling.rows):
            multiply = max(size * tiling.vectors / arch.fma_ports, arch.fma_latency)
            load = (size + tiling.vectors) / arch.load_ports
            total += count * (depth * max(multiply, load) + _TILE_CYCLES)
    return blocks * total


def balanced(extent: int, most: int) -> list[tuple[int, int]]:
    """Return tiles of at most ``most`` that cover ``extent``: (number, size), sizes differ by 1."""
    tiles = -(-extent // most)
    size, larger = divmod(extent, tiles)
    found = [(larger, size + 1), (tiles - larger, size)]
    return [(count, size) for count, size in found if count]
