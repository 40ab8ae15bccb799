"""GEMM problem as cost models see it, and cost terms that GEMM templates share."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tvmopt.device.cuda import CudaArch
from tvmopt.device.dtypes import itemsize
from tvmopt.kernels.cuda.common.gemm_form import GemmForm

# Bytes of the widest copy of a thread.
_VECTOR_BYTES = 16


@dataclasses.dataclass(frozen=True)
class MatmulProblem:
    """Sizes of C[s, i, j] += A[s, i, k] * B[s, j, k].

    Attributes:
        batch: Extent of s.
        rows: Extent of i (M).
        columns: Extent of j (N).
        depth: Extent of k (K).
        dtype: Operand dtype.
        accumulator: Accumulator dtype.
        sizes: Bytes of an element of each operand in memory.
        k_major: Whether each operand is K-major.
        runs: Elements of each operand in one aligned vector access.
        plain: Whether each operand is copied without arithmetic.
        padded: Whether a condition pads each operand with zeros.
        periods: Elements of K by multiples of which a pipeline may load each operand ahead.
        operand_bytes: Bytes of each operand in memory.
        output_bytes: Bytes of the output.
        out_run: Elements of the output in one aligned vector access.
        epilogue_bytes: Bytes that the epilogue reads besides.
        packed: Whether each operand is first packed into whole, aligned tiles.
        image_row: Output columns of a convolution, the fastest axis of ``i``.
        packs_gathers: Whether the packing kernel of each operand gathers, as in :meth:`gathers`.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    dtype: str
    accumulator: str
    sizes: tuple[float, float]
    k_major: tuple[bool, bool]
    runs: tuple[int, int]
    plain: tuple[bool, bool]
    padded: tuple[bool, bool]
    periods: tuple[int, int]
    operand_bytes: tuple[int, int]
    output_bytes: float
    out_run: int
    epilogue_bytes: float
    packed: tuple[bool, bool] = (False, False)
    packs_gathers: tuple[bool, bool] = (False, False)
    image_row: int = 1

    def gathers(self, n: int) -> bool:
        """Whether copies of operand ``n`` are narrow and under a condition.

        Their addresses follow from quotients and remainders of K by channels, for each copy anew.
        """
        return self.padded[n] and self.runs[n] * self.sizes[n] < _VECTOR_BYTES

    @property
    def bytes(self) -> float:
        """Compulsory memory traffic in bytes: each tensor moves once."""
        return sum(self.operand_bytes) + self.output_bytes + self.epilogue_bytes


def matmul_problem(gemm: GemmForm) -> MatmulProblem:
    """Return the sizes of a GEMM in normal form."""
    batch, rows, columns, depth = gemm.extents
    a, b = gemm.operands
    return MatmulProblem(
        batch=batch,
        rows=rows,
        columns=columns,
        depth=depth,
        dtype=gemm.a.dtype,
        accumulator=gemm.accumulator,
        sizes=(a.size, b.size),
        k_major=(a.contiguous == "k", b.contiguous == "k"),
        runs=(a.run, b.run),
        plain=(a.plain, b.plain),
        padded=(a.padded, b.padded),
        periods=(a.period, b.period),
        operand_bytes=gemm.operand_bytes,
        output_bytes=batch * rows * columns * itemsize(gemm.out),
        out_run=gemm.out_run,
        epilogue_bytes=float(gemm.epilogue_bytes),
        image_row=gemm.image_row,
    )


def packed_problem(problem: MatmulProblem, which: tuple[bool, bool]) -> MatmulProblem:
    """Return ``problem`` with the operands ``which`` packed.

    They become K-major unless they have 16 bits, which ldmatrix can transpose.
    """
    size = itemsize(problem.dtype)

    def both(new: Any, old: tuple[Any, Any]) -> tuple[Any, Any]:
        return new if which[0] else old[0], new if which[1] else old[1]

    return dataclasses.replace(
        problem,
        sizes=both(size, problem.sizes),
        k_major=both(True, problem.k_major) if size != 2 else problem.k_major,
        runs=both(int(16 / size), problem.runs),
        plain=both(True, problem.plain),
        padded=both(False, problem.padded),
        periods=both(1, problem.periods),
        packed=which,
        packs_gathers=(which[0] and problem.gathers(0), which[1] and problem.gathers(1)),
    )


def pack_cycles(problem: MatmulProblem, arch: CudaArch) -> float:
    """Return the cycles to pack the packed operands of ``problem``, one kernel each."""
    size = itemsize(problem.dtype)
    total = 0.0
    for n, edge in enumerate((problem.rows, problem.columns)):
        if problem.packed[n]:
            elements = problem.batch * edge * problem.depth
            moved = problem.operand_bytes[n] + elements * size
            cycles = moved / arch.dram_bytes_cycle
            if problem.packs_gathers[n]:
                warps = elements / arch.warp / (arch.sms * arch.partitions)
                # Of one such kernel (an H200, 2026-11-28), no stall was hidden.
                each = arch.costs.gather_instructions + arch.costs.gather_stall_cycles
                cycles = max(cycles, warps * each)
            total += arch.costs.launch_cycles + arch.costs.packing_cycles + cycles
    return total


@dataclasses.dataclass(frozen=True)
class Grid:
    """Distribution of the tiles over the SMs.

    Attributes:
        tiles: Thread blocks.
        resident: Resident thread blocks of an SM (occupancy).
        tiles_per_sm: Tiles that the busiest SM computes.
        concurrent: Tiles that it computes at once, on average.
    """

    tiles: int
    resident: int
    tiles_per_sm: int
    concurrent: float


def grid(
    problem: MatmulProblem, arch: CudaArch, block: tuple[int, ...], split_k: int, resident: int
) -> Grid:
    """Return how tiles of ``block`` fall on ``arch``, with ``resident`` thread blocks an SM."""
    tiles = problem.batch * split_k
    tiles *= math.ceil(problem.rows / block[0]) * math.ceil(problem.columns / block[1])
    tiles_per_sm = math.ceil(tiles / arch.sms)
    rounds = math.ceil(tiles_per_sm / max(1, resident))
    return Grid(tiles, resident, tiles_per_sm, tiles_per_sm / rounds)


def resident_blocks(arch: CudaArch, threads: int, registers: int, smem: int) -> int:
    """Return the resident thread blocks of an SM; 0 when not even one fits.

    Args:
        arch: The GPU.
        threads: Threads of a block.
        registers: Registers of a thread.
        smem: Shared memory of a block in bytes.
    """
    if smem > arch.smem_bytes or threads > arch.threads_block:
        return 0
    of_warp = math.ceil(registers * arch.warp / 256) * 256
    warps = math.ceil(threads / arch.warp)
    reserved = 1024 if arch.sm >= 80 else 0
    return min(
        arch.smem_sm_bytes // (smem + reserved),
        arch.registers_sm // (of_warp * warps),
        arch.threads_sm // threads,
        arch.blocks_sm,
    )


def memory_cycles(
    problem: MatmulProblem, arch: CudaArch, block: tuple[int, ...], raster: int
) -> tuple[float, float]:
    """Return the cycles that DRAM and L2 traffic of all tiles take at least.

    Args:
        problem: The sizes.
        arch: The GPU.
        block: Rows and columns of a tile.
        raster: Rows of tiles in a raster group.

    Returns:
        Cycles of DRAM and of L2.
    """
    down, across = math.ceil(problem.rows / block[0]), math.ceil(problem.columns / block[1])
    rows, columns = down * block[0], across * block[1]
    fetched = (
        problem.batch
        * problem.depth
        * (rows * across * problem.sizes[0] + columns * down * problem.sizes[1])
    )
    l2 = (fetched + problem.output_bytes + problem.epilogue_bytes) / (
        arch.costs.sm_tile_bytes_per_cycle * arch.sms
    )
    # The tiles of a wave cover a rectangle; its rows and columns come from DRAM once.
    wave = min(float(arch.sms), float(down * across))
    high = float(min(down, max(1, raster))) if raster else min(float(down), math.sqrt(wave))
    wide = max(1.0, min(float(across), wave / high))
    waves = max(1.0, down * across / (high * wide))
    per_wave = problem.depth * (
        min(high * block[0], problem.rows) * problem.sizes[0]
        + min(wide * block[1], problem.columns) * problem.sizes[1]
    )
    # The image of a convolution is smaller than its im2col matrix.
    fold = sum(problem.operand_bytes) / max(
        1.0,
        problem.batch
        * problem.depth
        * (problem.rows * problem.sizes[0] + problem.columns * problem.sizes[1]),
    )
    again = problem.batch * waves * per_wave * min(1.0, fold)
    resident = sum(problem.operand_bytes) <= arch.costs.l2_resident_share * arch.l2_bytes
    inputs = float(sum(problem.operand_bytes))
    if not resident:
        inputs = max(inputs, again)
    dram = (inputs + problem.output_bytes + problem.epilogue_bytes) / arch.dram_bytes_cycle
    return dram, l2


def split_k_cycles(problem: MatmulProblem, arch: CudaArch, split_k: int) -> float:
    """Return the cycles to write the ``split_k`` partial sums and to reduce them in a kernel."""
    if split_k == 1:
        return 0.0
    parts = problem.batch * problem.rows * problem.columns * itemsize(problem.accumulator) * split_k
    near = parts <= arch.costs.l2_resident_share * arch.l2_bytes
    return arch.costs.launch_cycles + 2.0 * parts / (
        arch.l2_bytes_cycle if near else arch.dram_bytes_cycle
    )
