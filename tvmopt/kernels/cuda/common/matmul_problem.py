"""A product of matrices as models see it: how much there is to multiply, read and write."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tvmopt.device.cuda import CudaArch
from tvmopt.device.dtypes import itemsize
from tvmopt.kernels.cuda.common.product import Product

#: Cycles from a launch to the first instruction and from the last one to the end.
LAUNCH = 2500.0
# Bytes a cycle that one multiprocessor takes from L2: three quarters of its port.
_PORT = 48.0
# Cycles from the first element that packing reads to the last that it writes, at least.
_PACKING = 500.0
# The share of L2 that holds data for multiprocessors everywhere.
_NEAR_L2 = 0.5


@dataclasses.dataclass(frozen=True)
class MatmulProblem:
    """Sizes of C[s, i, j] += A[s, i, k] * B[s, j, k].

    Attributes:
        batch: Extent of s.
        rows: Extent of i.
        columns: Extent of j.
        depth: Extent of k.
        dtype: Type of the factors.
        sums: Type of the sums.
        sizes: Bytes of an element of each factor in memory.
        along_k: Whether each factor's elements lie side by side along k.
        runs: Elements of each factor that one aligned access may take.
        plain: Whether each factor is copied without arithmetic.
        unique: Bytes of each factor in memory.
        written: Bytes of the result.
        out_run: Elements of the result that one aligned access may take.
        read: Bytes that the epilogue reads besides.
        packed: Whether each factor is first copied to whole, aligned tiles.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    dtype: str
    sums: str
    sizes: tuple[float, float]
    along_k: tuple[bool, bool]
    runs: tuple[int, int]
    plain: tuple[bool, bool]
    unique: tuple[int, int]
    written: float
    out_run: int
    read: float
    packed: tuple[bool, bool] = (False, False)

    @property
    def bytes(self) -> float:
        """Bytes that must come from memory, or go to it, at least once."""
        return sum(self.unique) + self.written + self.read


def matmul_problem(product: Product) -> MatmulProblem:
    """The sizes of a product in the normal form."""
    batch, rows, columns, depth = product.extents
    copies = product.copies
    return MatmulProblem(
        batch=batch,
        rows=rows,
        columns=columns,
        depth=depth,
        dtype=product.a.dtype,
        sums=product.sums,
        sizes=(copies[0].size, copies[1].size),
        along_k=(copies[0].contiguous == "k", copies[1].contiguous == "k"),
        runs=(copies[0].run, copies[1].run),
        plain=(copies[0].plain, copies[1].plain),
        unique=product.unique,
        written=batch * rows * columns * itemsize(product.out),
        out_run=product.out_run,
        read=float(product.read),
    )


def packed_problem(problem: MatmulProblem, which: tuple[bool, bool]) -> MatmulProblem:
    """``problem`` once the factors that ``which`` names are packed, bytes along k."""
    size = itemsize(problem.dtype)

    def both(new: Any, old: tuple[Any, Any]) -> tuple[Any, Any]:
        return new if which[0] else old[0], new if which[1] else old[1]

    return dataclasses.replace(
        problem,
        sizes=both(size, problem.sizes),
        along_k=both(True, problem.along_k) if size == 1 else problem.along_k,
        runs=both(int(16 / size), problem.runs),
        plain=both(True, problem.plain),
        packed=which,
    )


def pack_cycles(problem: MatmulProblem, arch: CudaArch) -> float:
    """Cycles to pack the factors of ``problem`` that are packed, a kernel each."""
    size = itemsize(problem.dtype)
    total = 0.0
    for n, edge in enumerate((problem.rows, problem.columns)):
        if problem.packed[n]:
            moved = problem.unique[n] + problem.batch * edge * problem.depth * size
            total += LAUNCH + _PACKING + moved / arch.dram_bytes_cycle
    return total


@dataclasses.dataclass(frozen=True)
class Grid:
    """How the tiles of a configuration fall on the multiprocessors.

    Attributes:
        tiles: Thread blocks.
        resident: Thread blocks that one multiprocessor holds at once.
        turns: Tiles that the busiest multiprocessor computes.
        together: Tiles that it computes at once, on average.
    """

    tiles: int
    resident: int
    turns: int
    together: float


def grid(
    problem: MatmulProblem, arch: CudaArch, block: tuple[int, ...], split_k: int, resident: int
) -> Grid:
    """Tiles of ``block`` on ``arch``, ``resident`` of them at once on a multiprocessor."""
    tiles = problem.batch * split_k
    tiles *= math.ceil(problem.rows / block[0]) * math.ceil(problem.columns / block[1])
    turns = math.ceil(tiles / arch.sms)
    rounds = math.ceil(turns / max(1, resident))
    return Grid(tiles, resident, turns, turns / rounds)


def resident_blocks(arch: CudaArch, threads: int, registers: int, smem: int) -> int:
    """Thread blocks that a multiprocessor holds at once; 0 when not even one fits.

    Args:
        arch: The GPU.
        threads: Threads of a block.
        registers: Registers of a thread.
        smem: Bytes of shared memory of a block.
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
    """Cycles that device memory and L2 need at least for all tiles.

    Args:
        problem: The sizes.
        arch: The GPU.
        block: Rows and columns of a tile.
        raster: Rows of tiles that run side by side.
    """
    down, across = math.ceil(problem.rows / block[0]), math.ceil(problem.columns / block[1])
    rows, columns = down * block[0], across * block[1]
    fetched = (
        problem.batch
        * problem.depth
        * (rows * across * problem.sizes[0] + columns * down * problem.sizes[1])
    )
    l2 = (fetched + problem.written + problem.read) / (_PORT * arch.sms)
    # A wave of tiles covers a rectangle; what its rows and columns read comes from memory once.
    wave = min(float(arch.sms), float(down * across))
    high = float(min(down, max(1, raster))) if raster else min(float(down), math.sqrt(wave))
    wide = max(1.0, min(float(across), wave / high))
    waves = max(1.0, down * across / (high * wide))
    per_wave = problem.depth * (
        min(high * block[0], problem.rows) * problem.sizes[0]
        + min(wide * block[1], problem.columns) * problem.sizes[1]
    )
    # A convolution's image is smaller than the matrix made of it.
    fold = sum(problem.unique) / max(
        1.0,
        problem.batch
        * problem.depth
        * (problem.rows * problem.sizes[0] + problem.columns * problem.sizes[1]),
    )
    again = problem.batch * waves * per_wave * min(1.0, fold)
    resident = sum(problem.unique) <= _NEAR_L2 * arch.l2_bytes
    inputs = float(sum(problem.unique)) if resident else max(float(sum(problem.unique)), again)
    dram = (inputs + problem.written + problem.read) / arch.dram_bytes_cycle
    return dram, l2


def sum_cycles(problem: MatmulProblem, arch: CudaArch, split_k: int) -> float:
    """Cycles to write the sums of ``split_k`` parts, and to read them again in a second kernel."""
    if split_k == 1:
        return 0.0
    parts = problem.batch * problem.rows * problem.columns * itemsize(problem.sums) * split_k
    near = parts <= _NEAR_L2 * arch.l2_bytes
    return LAUNCH + 2.0 * parts / (arch.l2_bytes_cycle if near else arch.dram_bytes_cycle)
