"""Configuration of fused attention with mma.sync: warps, tile, ring, splits of the keys."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.attention.problem import AttentionProblem
from tvmopt.kernels.cuda.common.attention_limits import why_not_fused
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.workload import Refusal

#: Name of the family.
ATTENTION = "mma_attention"
#: Threads of a block of the reduction kernel.
REDUCTION_THREADS = 64
_BYTES, _FLOAT = 2, 4
# Registers of a thread besides S, O and Q: addresses, fragments, statistics (nvcc 13.0 takes 76 to
# 94); with a mask; and how many more than there are it spills without much harm.
_OTHER_REGISTERS, _MASK_REGISTERS, _SPILLED_REGISTERS = 84, 12, 24
_MOST_WARPS, _MOST_SPLITS = 16, 256
_MOST_GRID = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class MmaAttentionConfig(CudaHint):
    """Configuration of a fused attention kernel.

    Attributes:
        row_warps: Warps along the rows of a tile.
        row_tiles: Tiles of 16 rows of a warp, 1 or 2.
        key_warps: Warps that share the keys of a block; their outputs are added up in the end.
        tile_keys: Keys of a block, 16 to 64 for each key warp.
        stages: Stages of the ring of K and V.
        split_k: Thread blocks that share the keys of a tile, with a reduction kernel; 1 without.
        query_registers: Whether the fragments of Q stay in registers.
    """

    row_warps: int = 4
    row_tiles: int = 1
    key_warps: int = 1
    tile_keys: int = 64
    stages: int = 2
    split_k: int = 1
    query_registers: bool = False

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: warps, splits, where Q is."""
        return (
            self.template, self.row_warps, self.row_tiles, self.key_warps, self.split_k > 1,
            self.query_registers,
        )  # fmt: skip

    @property
    def warps(self) -> int:
        """Warps of a thread block."""
        return self.row_warps * self.key_warps

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return 16 * self.row_tiles * self.row_warps

    def tiles(self, problem: AttentionProblem) -> int:
        """Return the tiles of the rows that share a head of K and V."""
        return -(-rows_of(problem) // self.tile_rows)

    def smem_bytes(self, problem: AttentionProblem) -> int:
        """Return the shared memory of a thread block, in bytes."""
        size, values = padded_to_mma(problem.head_size), padded_to_mma(problem.value_size)
        rows = self.tile_rows * max(size, values)
        ring = _BYTES * (rows + self.stages * self.tile_keys * (size + values))
        if self.key_warps == self.split_k == 1:
            return ring
        # A row of float32 outputs, padded against bank conflicts, with its maximum and sum.
        return max(ring, _FLOAT * self.key_warps * self.tile_rows * (values + 8 + 2))

    def registers(self, problem: AttentionProblem) -> int:
        """Return the estimated registers that a thread would use, were there no limit."""
        each = self.tile_keys // self.key_warps // 2 + padded_to_mma(problem.value_size) // 2
        if self.query_registers:
            each += padded_to_mma(problem.head_size) // 4
        masked = _MASK_REGISTERS if problem.mask_shape is not None else 0
        return self.row_tiles * each + _OTHER_REGISTERS + masked

    def why_not(self, problem: AttentionProblem) -> Refusal | None:
        """Return why this cannot compute ``problem``; None where it can."""
        if self.arch.sm < 80:
            return Refusal("the GPU has no cp.async and no mma.sync of this shape")
        if reason := why_not_fused(problem):
            return reason
        if self.row_tiles not in (1, 2) or not 1 <= self.warps <= _MOST_WARPS:
            return Refusal(f"a block has 1 to {_MOST_WARPS} warps of 16 or 32 rows")
        each, left = divmod(self.tile_keys, self.key_warps)
        if left or each % 16 or not 16 <= each <= 128:
            return Refusal("a warp has 16 to 128 keys of a block, a multiple of 16")
        if not 2 <= self.stages <= 8:
            return Refusal("a ring has two to eight stages")
        if not 1 <= self.split_k <= min(_MOST_SPLITS, -(-problem.keys // self.tile_keys)):
            return Refusal(f"keys are split into blocks of keys, {_MOST_SPLITS} parts at most")
        if self.registers(problem) > self.arch.registers_thread + _SPILLED_REGISTERS:
            return Refusal("scores, output and queries of a thread exceed its registers")
        if self.smem_bytes(problem) > self.arch.smem_bytes:
            return Refusal(
                f"{self.smem_bytes(problem)} bytes of shared memory are more than "
                f"{self.arch.smem_bytes}"
            )
        heads = problem.batch * problem.kv_heads
        lines = heads * rows_of(problem)
        if heads * self.tiles(problem) * self.split_k > _MOST_GRID:
            return Refusal("the grid has more thread blocks than int32 indexes")
        if self.split_k > 1 and self.split_k * lines * (problem.value_size + 2) > _MOST_GRID:
            return Refusal("the partial outputs are more than int32 indexes")
        return None


def rows_of(problem: AttentionProblem) -> int:
    """Return the rows of a head of K and V: the queries of all heads of Q that share it."""
    return problem.queries * (problem.heads // problem.kv_heads)


def padded_to_mma(size: int) -> int:
    """Return the head size in shared memory, a multiple of the MMA's depth of 16."""
    return -(-size // 16) * 16
