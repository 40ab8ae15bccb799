"""How the attention kernel is laid out for a CPU."""

from __future__ import annotations

import dataclasses

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.attention import AttentionProblem, MaskedBy

# Most keys of a block: scores of 16 queries and 128 keys take 8 KiB of L1.
_MOST_KEYS = 128
# Keys of a block with a causal mask, which skips whole blocks.
_MOST_CAUSAL_KEYS = 64


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
    """Return the blocking of ``problem`` for ``arch``."""
    lanes = arch.lanes("float32")
    needed = -(-problem.queries // lanes)
    vectors = min(needed, 2 if arch.vector_registers <= 16 else 3)
    if vectors == 3 and needed % 3 and not needed % 2:
        vectors = 2
    rows = (arch.vector_registers - vectors - 1) // vectors
    most = _MOST_KEYS if problem.causal is MaskedBy.NOTHING else _MOST_CAUSAL_KEYS
    return AttentionTiling(lanes, vectors, min(rows, 12), min(most, problem.keys))


def balanced(extent: int, most: int) -> list[tuple[int, int]]:
    """Return tiles of at most ``most`` that cover ``extent``: (number, size), sizes differ by 1."""
    tiles = -(-extent // most)
    size, larger = divmod(extent, tiles)
    found = [(larger, size + 1), (tiles - larger, size)]
    return [(count, size) for count, size in found if count]
