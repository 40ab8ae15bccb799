"""Configuration of the Hopper kernels: the options, and which of them fit a problem.

An option is a field of :class:`HopperConfig`, its conditions are in ``why_not``, its values in
:mod:`.space`. :mod:`.cost` predicts its cycles; :mod:`.kernel` and the parts named there use it.
"""

from __future__ import annotations

import dataclasses
import math

from tvm import tirx
from tvm.ir import Expr

from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.hopper.problem import (
    BYTES,
    K_BLOCK_BYTES,
    MOST_ELEMENTS,
    GemmProblem,
    ceil_div,
)
from tvmopt.kernels.workload import Refusal

#: Names of the families.
GEMM, CONV = "hopper_gemm", "hopper_conv"
#: N of the integer wgmma; the others take every multiple of 8 up to 256.
INT8_TILE_N = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224)
# Registers of a thread besides its accumulators.
_OTHER_REGISTERS = 32
# Most vectors of a spilled tile that a thread loads before it stores them.
_VECTORS_IN_FLIGHT = (4, 2, 1)
# Most thread blocks of a portable cluster.
_MOST_CLUSTER_SIZE = 8


@dataclasses.dataclass(frozen=True)
class HopperConfig(CudaHint):
    """Configuration of a warp-specialised GEMM.

    A tile has ``tile_m`` rows (the M = 64 dimension of wgmma) and ``tile_n`` columns (the N
    dimension). They are rows and columns of C, or with ``swap_ab`` of its transpose.

    Attributes:
        tile_k: Elements of K in one pipeline stage: 128 bytes.
        m_atoms: 64-row wgmma tiles of each consumer warpgroup.
        consumer_warpgroups: 1 to 3; one producer warpgroup more feeds them.
        tile_n: Columns of a tile.
        stages: Stages of the shared-memory ring.
        cluster_m: Cluster size along M; these blocks multicast the right operand.
        cluster_n: Cluster size along N; these blocks multicast the left operand.
        split_k: Split-K factor.
        split_k_workspace: Whether split-K goes through a workspace and a second kernel, not a
            cluster (DSMEM).
        swap_ab: Swap A and B: the columns of C are the rows of the tile.
        raster_group: Height of a raster group, in tiles (or in the tiles of a cluster).
        persistent: Whether the grid is one thread block an SM that loops over tiles.
        smem_store: Whether the epilogue stores through shared memory with vector stores, which
            allow any row width, instead of TMA stores.
        epilogue_buffers: Epilogue buffers of a warpgroup, each 128 bytes of a row of C wide.
        wgmma_wait_depth: wgmma groups left in flight.
        pingpong: Whether each consumer warpgroup has separate tiles, so that the epilogue of one
            overlaps the main loop of the other.
        parts: Parts of each operand in a stage: 2 for split float32, else 1.
        whole_blocks: Whether a stage holds whole blocks of 64 columns, more than ``tile_n``, as TMA
            loads an MN-major right operand; wgmma reads the first ``tile_n`` of them.
    """

    tile_k: int = 64
    m_atoms: int = 1
    consumer_warpgroups: int = 2
    tile_n: int = 256
    stages: int = 4
    cluster_m: int = 1
    cluster_n: int = 1
    split_k: int = 1
    split_k_workspace: bool = False
    swap_ab: bool = False
    raster_group: int = 8
    persistent: bool = True
    smem_store: bool = False
    epilogue_buffers: int = 2
    wgmma_wait_depth: int = 1
    pingpong: bool = False
    parts: int = 1
    whole_blocks: bool = False

    @property
    def group(self) -> tuple[object, ...]:
        """Multicast, split-K and epilogue store: configurations for which the model errs alike."""
        return (
            self.template, self.persistent, self.smem_store, self.epilogue_buffers,
            self.wgmma_wait_depth, self.split_k > 1, self.split_k_workspace, self.cluster_n,
            self.pingpong,
        )  # fmt: skip

    @property
    def features(self) -> list[float]:
        """The configuration as numbers; features have the same places in all CUDA families."""
        return [
            float(len(self.template)),
            math.log2(self.tile_m * self.tile_n),
            0.0,
            math.log2(64 * self.m_atoms * self.tile_n),
            0.0,
            0.0,
            math.log2(self.split_k),
            float(self.tile_k),
            float(self.stages),
            float(self.persistent + self.pingpong),
            float(self.smem_store),
            float(self.epilogue_buffers),
            float(self.wgmma_wait_depth),
        ]

    @property
    def tile_m(self) -> int:
        """Rows of a tile."""
        # Without the properties that it is the product of: a ranking reads it 50,000 times.
        return 64 * self.m_atoms * (1 if self.pingpong else self.consumer_warpgroups)

    @property
    def tile_warpgroups(self) -> int:
        """Consumer warpgroups that share a tile."""
        return 1 if self.pingpong else self.consumer_warpgroups

    def part_of(self, warpgroup: Expr) -> Expr:
        """Return which part of its tile a consumer warpgroup computes."""
        return tirx.const(0, "int32") if self.pingpong else warpgroup

    def first_row_of(self, warpgroup: Expr) -> Expr:
        """Return the first row of its tile that a consumer warpgroup computes."""
        return self.part_of(warpgroup) * self.warpgroup_m

    @property
    def warpgroup_m(self) -> int:
        """Rows of a consumer warpgroup."""
        return 64 * self.m_atoms

    @property
    def cluster_split_k(self) -> int:
        """Thread blocks of a cluster that share a reduction; 1 without cluster split-K."""
        return 1 if self.split_k_workspace else self.split_k

    @property
    def multicast_size(self) -> int:
        """Thread blocks of a cluster that multicast loads to each other."""
        return self.cluster_m * self.cluster_n

    @property
    def cluster_size(self) -> int:
        """Thread blocks of a cluster."""
        return max(self.multicast_size, self.cluster_split_k)

    @property
    def resident_clusters(self) -> int:
        """Clusters that are resident at once, one thread block an SM."""
        return self.arch.resident_clusters(self.cluster_size)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage, in bytes."""
        return self.parts * (self.tile_m + self.loaded_n) * K_BLOCK_BYTES

    @property
    def loaded_n(self) -> int:
        """Columns that a stage holds of the right operand."""
        return 64 * ceil_div(self.tile_n, 64) if self.whole_blocks else self.tile_n

    def columns_of(self, rank: int) -> range:
        """Return the tile columns that rank ``rank`` of a cluster split-K reduces and stores."""
        blocks, ranks = self.tile_n // 8, self.cluster_split_k
        return range(8 * (rank * blocks // ranks), 8 * ((rank + 1) * blocks // ranks))

    @property
    def block_columns(self) -> int:
        """Most tile columns that one thread block stores."""
        return 8 * ceil_div(self.tile_n // 8, self.cluster_split_k)

    @property
    def dsmem_bytes(self) -> int:
        """Shared memory for the partial accumulators of the other ranks, in bytes."""
        return (self.cluster_split_k - 1) * self.tile_m * self.block_columns * 4

    @property
    def spill_pitch(self) -> int:
        """Row pitch of the spilled tile in elements, padded against bank conflicts."""
        return self.tile_m + 4 if self.swap_ab else self.block_columns + 8

    @property
    def spill_bytes(self) -> int:
        """Shared memory of the spilled tile (this rank's columns of it), in bytes."""
        return (self.block_columns if self.swap_ab else self.tile_m) * self.spill_pitch * 4

    @property
    def epilogue_aliases_ring(self) -> bool:
        """Whether the epilogue tile aliases the ring: with one tile a block, the ring is drained.

        A cluster split-K with TMA stores has a separate epilogue tile.
        """
        return not self.persistent and (self.smem_store or self.cluster_split_k == 1)

    @property
    def tma_store_bytes(self) -> int:
        """Shared memory of the buffers for TMA stores, in bytes."""
        return self.consumer_warpgroups * self.epilogue_buffers * self.buffer_rows * 128

    @property
    def buffer_rows(self) -> int:
        """Rows of C in one epilogue buffer."""
        return self.block_columns if self.swap_ab else self.warpgroup_m

    def buffers_hold_tile(self, out: str) -> bool:
        """Whether the epilogue buffers hold a whole tile of dtype ``out``.

        Then TMA can prefetch a residual of the output's shape into them.
        """
        plain = self.persistent and self.cluster_split_k == 1
        plain = plain and not (self.smem_store or self.swap_ab)
        return plain and self.tile_n * BYTES[out] == 128 * self.epilogue_buffers

    @property
    def smem_bytes(self) -> int:
        """Shared memory of the kernel, in bytes."""
        ring = max(self.stages * self.stage_bytes, self.dsmem_bytes)
        epilogue = self.spill_bytes if self.smem_store else self.tma_store_bytes
        if self.epilogue_aliases_ring:
            ring = max(ring, self.dsmem_bytes + epilogue)
        else:
            ring += epilogue
        return ring + 16 * self.stages + 1024

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a producer and of a consumer thread; (0, 0) without ``setmaxnreg``."""
        if self.smem_store:
            return 0, 0
        return {2: (40, 232), 3: (32, 160)}.get(self.consumer_warpgroups, (0, 0))

    @property
    def _accumulator_registers(self) -> int:
        return self.m_atoms * self.tile_n // 2

    @property
    def _first_registers(self) -> int:
        """Registers that a thread starts with; ptxas fails if the accumulators exceed them."""
        return min(255, self.arch.registers_sm // (128 * (self.consumer_warpgroups + 1)))

    @property
    def block_sums(self) -> int:
        """Sums of K blocks of split operands that registers hold beside the sum of all: 0 to 2."""
        # ptxas was seen to spill nothing up to here.
        most = max(self._first_registers, self.registers[1]) - _OTHER_REGISTERS
        return min(2, max(0, most // self._accumulator_registers - 1))

    def k_major(self, problem: GemmProblem) -> tuple[bool, bool]:
        """Whether the left operand (tile rows) and the right one (tile columns) are K-major."""
        a, b = problem.k_major
        return (b, a) if self.swap_ab else (a, b)

    def _why_too_large(self) -> Refusal | None:
        """Return why no SM can hold a thread block; None where one can."""
        if not (1 <= self.consumer_warpgroups <= 3 and self.m_atoms >= 1):
            return Refusal("a tile has one to three consumer warpgroups, each of at least 64 rows")
        if self._accumulator_registers + _OTHER_REGISTERS > self._first_registers:
            return Refusal("the accumulators of a thread exceed its registers")
        if self.smem_bytes > self.arch.smem_bytes:
            return Refusal(
                f"{self.smem_bytes} bytes of shared memory are more than {self.arch.smem_bytes}"
            )
        return None

    def why_not_dtype(self, dtype: str) -> Refusal | None:
        """Return why this fits no problem of operand dtype ``dtype``; None where it can."""
        if not self.arch.has_wgmma:
            return Refusal("the GPU has no wgmma")
        if self.tile_k * BYTES[dtype] != K_BLOCK_BYTES:
            return Refusal(f"a K block has {K_BLOCK_BYTES} bytes, not {self.tile_k} of {dtype}")
        if self.tile_n % 8 or not 8 <= self.tile_n <= 256:
            return Refusal("wgmma has 8 to 256 columns, a multiple of 8")
        if dtype == "int8" and self.tile_n not in INT8_TILE_N:
            return Refusal(f"the integer wgmma has no {self.tile_n} columns")
        if reason := self._why_no_pingpong() or self._why_too_large():
            return reason
        if self.stages < 2 + max(0, self.wgmma_wait_depth - 1):
            return Refusal("a ring has at least two stages, and one more for each wgmma in flight")
        return None

    def why_not(self, problem: GemmProblem) -> Refusal | None:
        """Return why this cannot compute ``problem``; None where it can."""
        return problem.refusal or self.why_not_dtype(problem.dtype) or self.why_not_problem(problem)

    def why_not_problem(self, problem: GemmProblem) -> Refusal | None:
        """Return why this cannot compute a ``problem`` whose dtype it fits; None where it can."""
        if self.parts != problem.parts:
            return Refusal(f"a stage holds {problem.parts} parts of an operand, not {self.parts}")
        if problem.split_float32:
            if not self.block_sums:
                return Refusal("the accumulators of a K block and a tile exceed the registers")
            if self.pingpong:
                return Refusal("ping-pong overlaps no additions between the K blocks")
        _, right = self.k_major(problem)
        if not right and self.loaded_n % 64:
            return Refusal("the stages of an MN-major right operand hold blocks of 64 columns")
        if self.whole_blocks and (right or self.loaded_n == self.tile_n):
            return Refusal("only tiles of an MN-major right operand need whole_blocks")
        if self.multicast_size > 1 and self.cluster_split_k > 1:
            return Refusal("a cluster is either for multicast or for split-K")
        if self.multicast_size not in (1, 2, 4, 8) or self.cluster_m > self.tile_n // 8:
            return Refusal(f"a cluster of {self.cluster_m} x {self.cluster_n} cannot multicast")
        if self.split_k > 1:
            steps = problem.k_blocks
            if not self.split_k_workspace and self.persistent:
                return Refusal("cluster split-K needs one tile a thread block")
            if self.cluster_split_k > _MOST_CLUSTER_SIZE or steps < self.split_k:
                return Refusal(f"{steps} K blocks cannot be split by {self.split_k}")
        if self.split_k_workspace and not 1 < self.split_k <= MOST_ELEMENTS // problem.elements:
            return Refusal("split-K through workspace needs several slices, 2**31 - 1 elements")
        if problem.dynamic and not (self.persistent and self.split_k == 1):
            return Refusal("a dynamic number of rows needs a persistent grid")
        return None if self.smem_store else self._why_no_tma_store(problem)

    def _why_no_pingpong(self) -> Refusal | None:
        """Return why the consumer warpgroups cannot take turns; None where they can."""
        if not self.pingpong:
            return None
        if self.consumer_warpgroups != 2:
            return Refusal("ping-pong needs two consumer warpgroups")
        if not self.persistent or self.split_k > 1:
            return Refusal("ping-pong needs a persistent grid and no split-K")
        if self.cluster_size > 1 or self.swap_ab or self.smem_store:
            return Refusal("ping-pong has no cluster, no swapped A and B, and stores with TMA")
        return None

    def _why_no_tma_store(self, problem: GemmProblem) -> Refusal | None:
        """Return why TMA cannot store the output; None where it can."""
        size = BYTES[problem.accumulator if self.split_k_workspace else problem.out]
        if problem.n * size % 16:
            return Refusal(f"TMA stores rows of a multiple of 16 bytes, not {problem.n * size}")
        width, part = 128 // size, self.tile_n // self.cluster_split_k
        if self.swap_ab:
            if size != 2:
                return Refusal(f"with swapped A and B, TMA stores no elements of {size} bytes")
            if self.tile_n % (8 * self.cluster_split_k) or self.m_atoms % self.epilogue_buffers:
                return Refusal(
                    f"{part} columns and {self.m_atoms} m_atoms are not whole groups of 8 and "
                    f"{self.epilogue_buffers}"
                )
        elif self.cluster_split_k > 1 and self.tile_n % (width * self.cluster_split_k):
            return Refusal(f"{part} columns a thread block are not whole groups of {width}")
        elif part < width or ceil_div(part, width) % self.epilogue_buffers:
            return Refusal(
                f"{part} columns are not whole groups of {self.epilogue_buffers} x {width}"
            )
        return None


def spilled_rounds(vectors: int, threads: int) -> tuple[int, int]:
    """Return how a block stores a tile that is spilled to shared memory.

    Args:
        vectors: Vectors of the tile.
        threads: Threads that store.

    Returns:
        Vectors of a thread, and how many of them it loads before it stores them.
    """
    rounds = ceil_div(vectors, threads)
    if vectors % threads:
        return rounds, 1
    return rounds, next(v for v in _VECTORS_IN_FLIGHT if rounds % v == 0)


@dataclasses.dataclass(frozen=True)
class HopperConvConfig(HopperConfig):
    """Configuration of an implicit-GEMM convolution.

    Attributes:
        pixel_box: Images, rows and columns of the output pixels that are the rows of a consumer
            warpgroup; None for the fastest by :func:`.boxes`.
    """

    pixel_box: tuple[int, int, int] | None = None

    @property
    def group(self) -> tuple[object, ...]:
        """As of a GEMM, and the pixel box."""
        return *super().group, self.pixel_box
