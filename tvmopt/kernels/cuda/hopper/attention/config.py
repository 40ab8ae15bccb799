"""Configuration of the fused attention kernel: tile, ring, overlap of softmax and GEMMs."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.attention.problem import AttentionProblem
from tvmopt.kernels.cuda.common.attention_limits import why_not_fused
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.hopper.attention.operand_layout import padded_size
from tvmopt.kernels.workload import Refusal

#: Name of the family.
ATTENTION = "hopper_attention"
_BYTES = 2
# Registers of a thread besides scores, probabilities and output; more for the elements of a mask.
_OTHER_REGISTERS, _MASK_REGISTERS = 28, 12
# Registers of a producer and of a consumer thread, by consumer warpgroups; the kernel is launched
# with 65536 registers divided among all threads.
_REGISTERS = {1: (0, 0), 2: (24, 240), 3: (32, 160)}
_LAUNCHED_WITH = {1: 255, 2: 240, 3: 160}
_BARRIER_BYTES = 1024


@dataclasses.dataclass(frozen=True)
class HopperAttentionConfig(CudaHint):
    """Configuration of a fused attention kernel.

    Attributes:
        consumer_warpgroups: 1 to 3, each for 64 queries; one producer warpgroup more feeds them.
        tile_keys: Keys of a block, a multiple of 16.
        stages: Stages of the ring of K blocks, and of the ring of V blocks.
        pingpong: Whether the consumer warpgroups issue their GEMMs in turn (named barriers), so
            that the softmax of one overlaps the GEMMs of the others.
        persistent: Whether the grid is one thread block an SM that loops over tiles.
        own_output: Whether the output tile has separate shared memory, not Q's: then TMA
            loads the next Q during the epilogue.
        integer_max: Whether row maxima compare the bits of scores as integers, three at once.
        lazy_rescale: Whether the output is rescaled only where a row maximum grew by a factor of
            more than 256 in the probabilities (FlashAttention-4).
        query_stages: Stages of the ring of Q: 1, or 2 where TMA loads the next Q during a tile, and
            the first GEMM of the next tile overlaps the epilogue.
        head_group: Heads whose tiles follow each other, longest first, with a causal mask; 0 for
            :func:`~tvmopt.kernels.cuda.common.head_groups.heads_of_group`.
    """

    consumer_warpgroups: int = 2
    tile_keys: int = 128
    stages: int = 2
    pingpong: bool = True
    persistent: bool = True
    own_output: bool = False
    integer_max: bool = False
    lazy_rescale: bool = False
    query_stages: int = 1
    head_group: int = 0

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: warpgroups, ping-pong, grid, softmax, stages of Q."""
        return (
            self.template, self.consumer_warpgroups, self.pingpong, self.persistent,
            self.integer_max, self.lazy_rescale, self.query_stages,
        )  # fmt: skip

    @property
    def tile_queries(self) -> int:
        """Queries of a tile."""
        return 64 * self.consumer_warpgroups

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a producer and of a consumer thread; (0, 0) without ``setmaxnreg``."""
        return _REGISTERS[self.consumer_warpgroups]

    def smem_bytes(self, problem: AttentionProblem) -> int:
        """Return the shared memory of the kernel, in bytes."""
        sizes = padded_size(problem.head_size), padded_size(problem.value_size)
        each = self.query_stages * sizes[0] + (sizes[1] if self.own_output else 0)
        rows = self.tile_queries * each
        return _BYTES * (rows + self.stages * self.tile_keys * sum(sizes)) + _BARRIER_BYTES

    def why_not(self, problem: AttentionProblem) -> Refusal | None:
        """Return why this cannot compute ``problem``; None where it can."""
        if not self.arch.has_wgmma:
            return Refusal("the GPU has no wgmma")
        if reason := why_not_fused(problem):
            return reason
        if self.consumer_warpgroups not in _REGISTERS:
            return Refusal("a tile has one to three consumer warpgroups")
        if self.tile_keys % 16 or not 16 <= self.tile_keys <= 256:
            return Refusal("a block has 16 to 256 keys, a multiple of 16")
        if self.head_group < 0:
            return Refusal("a group of heads has a size, or 0")
        if self.stages < 2:
            return Refusal("a ring has at least two stages")
        if self.query_stages not in (1, 2):
            return Refusal("a ring of Q has one or two stages")
        if self.query_stages > 1 and not self.persistent:
            return Refusal("two stages of Q are for persistent kernels")
        if problem.head_size != problem.value_size and not self.own_output:
            return Refusal("only an output tile of the shape of Q can take the memory of Q")
        # Scores in float32, probabilities in 16 bits, the output in float32.
        used = self.tile_keys // 2 + self.tile_keys // 4 + padded_size(problem.value_size) // 2
        used += _MASK_REGISTERS if problem.mask_shape is not None else 0
        if used + _OTHER_REGISTERS > _LAUNCHED_WITH[self.consumer_warpgroups]:
            return Refusal("scores, probabilities and output of a thread exceed its registers")
        if self.smem_bytes(problem) > self.arch.smem_bytes:
            return Refusal(
                f"{self.smem_bytes(problem)} bytes of shared memory are more than "
                f"{self.arch.smem_bytes}"
            )
        return None
