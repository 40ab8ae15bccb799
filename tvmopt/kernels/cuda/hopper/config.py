"""Configuration of a Hopper kernel: tile, pipeline, cluster, split-K, epilogue store."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cuda.hopper.problem import BYTES, MOST_ELEMENTS, GemmProblem, ceil_div

#: Most shared memory of a thread block, in bytes.
SHARED_BYTES = 232448
#: 32-bit registers of an SM; registers of a thread besides its accumulators.
REGISTERS = 65536
_OTHERS = 32
#: Most thread blocks of a cluster.
MOST_TOGETHER = 8
# Clusters that are resident at once, by cluster size, on 132 SMs (one thread block an SM).
_AT_ONCE = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}
#: Bytes of K in one pipeline stage (a K block): one atom of the 128-byte swizzle.
DEPTH_BYTES = 128
#: N of the integer wgmma; the others take every multiple of 8 up to 256.
INT8_COLUMNS = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224)


@dataclasses.dataclass(frozen=True)
class Config:
    """Configuration of the main loop and the epilogue.

    A tile has *rows* (the M = 64 dimension of wgmma) and *columns* (the N dimension). They are rows
    and columns of C, or with ``swap`` of its transpose.

    Attributes:
        atoms: 64-row wgmma tiles of each consumer warpgroup.
        consumers: Consumer warpgroups, 1 to 3; one producer warpgroup more feeds them.
        columns: Columns of a tile.
        stages: Stages of the shared-memory ring.
        cluster: Cluster size along the rows; these blocks multicast the right operand.
        beside: Cluster size along the columns; these blocks multicast the left operand.
        split: Split-K factor.
        apart: Whether split-K goes through a workspace and a second kernel, not a cluster (DSMEM).
        swap: Swap A and B: the columns of C are the rows of the tile.
        raster: Height of a raster group, in tiles (or in the tiles of a cluster).
        persistent: Whether the grid is one thread block an SM that loops over tiles.
        staged: Whether the epilogue stores through shared memory with vector stores, which allow
            any row width, instead of TMA stores.
        buffers: Epilogue buffers of a warpgroup, each 128 bytes of a row of C wide.
        flight: Wait depth: wgmma groups left in flight.
        sms: SMs of the GPU.
    """

    atoms: int = 1
    consumers: int = 2
    columns: int = 256
    stages: int = 4
    cluster: int = 1
    beside: int = 1
    split: int = 1
    apart: bool = False
    swap: bool = False
    raster: int = 8
    persistent: bool = True
    staged: bool = False
    buffers: int = 2
    flight: int = 1
    sms: int = 132

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return 64 * self.atoms * self.consumers

    @property
    def ranks(self) -> int:
        """Thread blocks of a cluster split-K; 1 without one."""
        return 1 if self.apart else self.split

    @property
    def sharers(self) -> int:
        """Thread blocks of a cluster that multicast loads to each other."""
        return self.cluster * self.beside

    @property
    def together(self) -> int:
        """Thread blocks of a cluster."""
        return max(self.sharers, self.ranks)

    @property
    def at_once(self) -> int:
        """Resident clusters, one thread block an SM."""
        if self.together == 1:
            return self.sms
        return max(1, _AT_ONCE[self.together] * self.sms // _AT_ONCE[1])

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage, in bytes."""
        return (self.rows + self.columns) * DEPTH_BYTES

    def columns_of(self, rank: int) -> range:
        """Return the tile columns that rank ``rank`` of a cluster split-K finishes and stores."""
        blocks = self.columns // 8
        return range(8 * (rank * blocks // self.ranks), 8 * ((rank + 1) * blocks // self.ranks))

    @property
    def part_columns(self) -> int:
        """Most tile columns that one thread block finishes."""
        return 8 * ceil_div(self.columns // 8, self.ranks)

    @property
    def exchange_bytes(self) -> int:
        """Shared memory for the partial sums of the other ranks, in bytes."""
        return (self.ranks - 1) * self.rows * self.part_columns * 4

    @property
    def pitch(self) -> int:
        """Row pitch of the spilled tile in elements, padded against bank conflicts."""
        return self.rows + 4 if self.swap else self.part_columns + 8

    @property
    def staged_bytes(self) -> int:
        """Shared memory of the spilled tile (this rank's columns of it), in bytes."""
        return (self.part_columns if self.swap else self.rows) * self.pitch * 4

    @property
    def over_ring(self) -> bool:
        """Whether the epilogue tile aliases the ring: with one tile a block, the ring is drained.

        A cluster split-K with TMA stores has a separate epilogue tile.
        """
        return not self.persistent and (self.staged or self.ranks == 1)

    @property
    def sent_bytes(self) -> int:
        """Shared memory of the buffers for TMA stores, in bytes."""
        return self.consumers * self.buffers * self.chunk_rows * 128

    @property
    def chunk_rows(self) -> int:
        """Rows of C in one epilogue buffer."""
        return self.part_columns if self.swap else 64 * self.atoms

    def holds_all(self, out: str) -> bool:
        """Whether the epilogue buffers hold a whole tile of dtype ``out``.

        Then TMA can prefetch a residual of the output's shape into them.
        """
        plain = self.persistent and self.ranks == 1 and not (self.staged or self.swap)
        return plain and self.columns * BYTES[out] == 128 * self.buffers

    @property
    def shared_bytes(self) -> int:
        """Shared memory of the kernel, in bytes."""
        ring = max(self.stages * self.stage_bytes, self.exchange_bytes)
        leaving = self.staged_bytes if self.staged else self.sent_bytes
        if self.over_ring:
            ring = max(ring, self.exchange_bytes + leaving)
        else:
            ring += leaving
        return ring + 16 * self.stages + 1024

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a producer and of a consumer thread; (0, 0) without ``setmaxnreg``."""
        if self.staged:
            return 0, 0
        return {2: (40, 232), 3: (32, 160)}.get(self.consumers, (0, 0))

    def why_too_large(self) -> str | None:
        """Return why no SM can hold a thread block; None where one can."""
        if not (1 <= self.consumers <= 3 and self.atoms >= 1):
            return "one to three warpgroups multiply, each at least 64 rows"
        # A thread starts with this many registers; ptxas fails if the accumulators exceed them.
        most = min(255, REGISTERS // (128 * (self.consumers + 1)))
        if self.atoms * self.columns // 2 + _OTHERS > most:
            return "the sums of a warpgroup take more registers than there are"
        if self.shared_bytes > SHARED_BYTES:
            return f"{self.shared_bytes} bytes of shared memory are more than {SHARED_BYTES}"
        return None

    def why_not_any(self, dtype: str) -> str | None:
        """Return why this computes no problem of ``dtype``; None where it can."""
        if self.columns % 8 or not 8 <= self.columns <= 256:
            return "an instruction has 8 to 256 columns, a multiple of 8"
        if dtype == "int8" and self.columns not in INT8_COLUMNS:
            return f"the integer instruction has no {self.columns} columns"
        if reason := self.why_too_large():
            return reason
        if self.stages < 2 + max(0, self.flight - 1):
            return "a ring has at least two stages, and one for each group more that is in flight"
        return None

    def why_not(self, problem: GemmProblem) -> str | None:
        """Return why this cannot compute ``problem``; None where it can."""
        if reason := problem.why_not:
            return reason
        if reason := self.why_not_any(problem.dtype):
            return reason
        _, right = self.major(problem)
        if not right and self.columns % 64:
            return "columns that are not contiguous along the depth come 64 at a time"
        if self.sharers > 1 and self.ranks > 1:
            return "a cluster shares either loads or depth"
        if self.sharers not in (1, 2, 4, 8) or self.cluster > self.columns // 8:
            return f"{self.cluster} x {self.beside} thread blocks cannot share loads"
        if self.split > 1:
            depth = ceil_div(problem.k * BYTES[problem.dtype], DEPTH_BYTES)
            if not self.apart and self.persistent:
                return "a depth that a cluster divides needs one tile a thread block"
            if self.ranks > MOST_TOGETHER or depth < self.split:
                return f"a depth of {depth} steps cannot be divided by {self.split}"
        if self.apart and not 1 < self.split <= MOST_ELEMENTS // problem.elements:
            return "parts that are added up later must be several, of 2**31 - 1 elements in all"
        if problem.dynamic and not (self.persistent and self.split == 1):
            return "a dynamic number of rows needs a persistent grid"
        return None if self.staged else self._why_not_sent(problem)

    def _why_not_sent(self, problem: GemmProblem) -> str | None:
        """Return why TMA cannot store the output; None where it can."""
        size = BYTES[problem.accumulator if self.apart else problem.out]
        if problem.n * size % 16:
            row = problem.n * size
            return f"the copy engine stores rows of a multiple of 16 bytes, not {row}"
        chunk, part = 128 // size, self.columns // self.ranks
        if self.swap:
            if size != 2:
                return f"exchanged operands need staged stores of {size} bytes"
            if self.columns % (8 * self.ranks) or self.atoms % self.buffers:
                counts = f"{part} columns and {self.atoms} chunks"
                return f"{counts} are not whole groups of 8 and {self.buffers}"
        elif self.ranks > 1 and self.columns % (chunk * self.ranks):
            return f"{part} columns of each thread block are not whole groups of {chunk}"
        elif part < chunk or ceil_div(part, chunk) % self.buffers:
            return f"{part} columns are not whole groups of {self.buffers} x {chunk}"
        return None

    def major(self, problem: GemmProblem) -> tuple[bool, bool]:
        """Whether the left operand (tile rows) and the right one (tile columns) are K-major."""
        a, b = problem.major
        return (b, a) if self.swap else (a, b)
