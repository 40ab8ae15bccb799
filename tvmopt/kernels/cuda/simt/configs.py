"""Enumerate configurations of the SIMT GEMM, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tvm import tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.device.dtypes import itemsize
from tvmopt.kernels.cuda.common.matmul_problem import (
    LAUNCH,
    MatmulProblem,
    grid,
    matmul_problem,
    memory_cycles,
    resident_blocks,
    sum_cycles,
)
from tvmopt.kernels.cuda.common.product import Product, normalise
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.simt.schedule import NAME, why_not_simt
from tvmopt.kernels.ranked import Ranked

_ROWS = (16, 32, 64, 96, 128, 256)
_TILES = ((2, 2), (2, 4), (4, 2), (4, 4), (4, 8), (8, 4), (8, 8), (8, 16), (16, 8))
_STEPS = (8, 16, 32)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_MOST_REGISTERS = 255
# Most unrolled multiply-adds of a K block; half of it for GEMMs of fewer multiply-adds than
# ``_LONG``: nvcc takes seconds over more, and gains little.
_MOST_UNROLLED, _LONG = 2048, 2**36
# Registers beyond accumulators, fragments and staging; registers of bounds checks.
_OTHER_REGISTERS, _GUARD_REGISTERS = 30, 8
# Share of the staged elements that has registers of its own.
_STAGED = 0.75
# Cycles in which shared memory returns 16 bytes to each lane of a warp.
_RETURN = 3.0
# Stall of a warp that is alone on its scheduler, as a share of its work.
_ALONE = 0.9
# Barrier stall of a tile that runs alone, as a share of its work.
_BARRIER = 0.04
# Cycles before the first multiply-add and after the last.
_FILL = 11600.0
# Measured time relative to the data sheet's base clock: the clock boosts.
_BOOST = 0.79


def simt_matmul_hints(func: tirx.PrimFunc | Product, arch: CudaArch) -> list[Ranked[CudaHint]]:
    """Return all configurations that may pay, ranked; none when the template does not fit.

    Args:
        func: A function, or its GEMM in normal form.
        arch: The GPU.
    """
    product = func if isinstance(func, Product) else normalise(func)
    if product is None:
        return []
    problem = matmul_problem(product)
    found = [simt_matmul_cost(problem, hint) for hint in _hints(problem, arch)]
    return sorted((one for one in found if one is not None), key=lambda one: one.cycles)


def _hints(problem: MatmulProblem, arch: CudaArch) -> Iterator[CudaHint]:
    """Yield tiles and split-K factors that fit the problem and the template."""
    work = problem.batch * problem.rows * problem.columns * problem.depth
    unrolled = _MOST_UNROLLED if work >= _LONG else _MOST_UNROLLED // 2
    for bm, bn in itertools.product(_ROWS, _ROWS):
        # A tile far larger than the output wastes work that a smaller one does not.
        if bm >= 2 * max(16, problem.rows) or bn >= 2 * max(16, problem.columns):
            continue
        tiles = problem.batch * math.ceil(problem.rows / bm) * math.ceil(problem.columns / bn)
        for (rows, columns), step, split in itertools.product(_TILES, _STEPS, _SPLITS):
            if bm % rows or bn % columns or rows * columns * step > unrolled:
                continue
            if split > 1 and (tiles > arch.sms or problem.depth < 4 * split * step):
                continue
            tm, tn = bm // rows, bn // columns
            lanes = 8 if rows > columns and tm % 8 == 0 and tn % 4 == 0 else 4
            hint = CudaHint(
                template=NAME,
                arch=arch,
                block=(bm, bn),
                thread=(tm, tn),
                rstep=step,
                stages=2 if problem.depth > step * split else 1,
                raster=8,
                split_k=split,
                options=(("lanes_m", lanes),) if lanes != 4 else (),
            )
            if tm * tn >= 2 * arch.warp and tm * tn <= 512 and not why_not_simt(hint):
                yield hint


def simt_matmul_cost(problem: MatmulProblem, hint: CudaHint) -> Ranked[CudaHint] | None:
    """Return ``hint`` with its predicted cycles; None when it does not fit the GPU."""
    arch = hint.arch
    (bm, bn), (tm, tn), step = hint.block, hint.thread, hint.rstep
    threads, rows, columns = tm * tn, bm // tm, bn // tn
    words = max(1.0, itemsize(problem.dtype) / 4)
    ragged = problem.rows % bm or problem.columns % bn or problem.depth % (step * hint.split_k)
    registers = int(
        rows * columns * max(1.0, itemsize(problem.sums) / 4)
        + (rows + columns) * words
        + _STAGED * (bm + bn) * step / threads * words
        + _OTHER_REGISTERS
        + (_GUARD_REGISTERS if ragged else 0)
    )
    size = itemsize(problem.dtype)
    smem = int(hint.stages * step * (bm + bn + 8) * size)
    spilled = max(0, registers - _MOST_REGISTERS)
    resident = resident_blocks(arch, threads, min(registers, _MOST_REGISTERS), smem)
    if resident == 0 or spilled > 16:
        return None
    tiles = grid(problem, arch, hint.block, hint.split_k, resident)
    warps = threads / arch.warp
    steps = math.ceil(problem.depth / (step * hint.split_k))
    # Cycles of one K block of one tile that has the SM to itself.
    rate = arch.fp32_fma / arch.fma(problem.dtype) if problem.dtype == "float64" else 1.0
    lanes = arch.warp * arch.partitions / arch.fp32_fma
    multiply = warps * rows * columns * step * rate * lanes / arch.partitions
    moved = sum(_moves(problem, hint, n) for n in range(2))
    fetches = (rows + columns) * step * size / 16
    issue = warps * (rows * columns * step * rate * lanes + fetches + moved) / arch.partitions
    shared = warps * (fetches * _RETURN + moved * 2)
    busy = (issue**3 + shared**3) ** (1 / 3)
    concurrent = warps / arch.partitions * tiles.together
    one = busy * (1.0 + _ALONE / max(0.25, concurrent)) * (1.0 + _BARRIER / tiles.together)
    finish = warps * rows * columns * 4.0 * lanes
    compute = (tiles.turns * (steps * one + finish) + _FILL) * _BOOST
    dram, l2 = memory_cycles(problem, arch, hint.block, hint.raster)
    second = sum_cycles(problem, arch, hint.split_k)
    total = max(compute, dram, l2) + LAUNCH + second
    facts = (compute, dram, l2, multiply * steps * tiles.turns, concurrent, float(tiles.turns))
    return Ranked(hint, total, facts)


def _moves(problem: MatmulProblem, hint: CudaHint, n: int) -> float:
    """Return a thread's instructions to copy a K block of operand ``n`` to shared memory."""
    count = hint.rstep * hint.block[n] / math.prod(hint.thread)
    inner = hint.rstep if problem.along_k[n] else hint.block[n]
    vector = math.gcd(
        min(problem.runs[n], int(16 / max(problem.sizes[n], itemsize(problem.dtype)))),
        max(1, int(count)),
        inner,
    )
    stores = count if problem.along_k[n] else count / vector
    ragged = 1.0 if problem.runs[n] > 1 else 2.0
    return ragged * count / vector + stores
