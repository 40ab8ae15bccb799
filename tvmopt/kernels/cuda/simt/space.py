"""Enumerate configurations of the SIMT GEMM, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tvmopt.device.cuda import CudaArch
from tvmopt.device.dtypes import itemsize
from tvmopt.kernels.cuda.common.gemm_form import GemmForm
from tvmopt.kernels.cuda.common.matmul_problem import (
    MatmulProblem,
    grid,
    matmul_problem,
    memory_cycles,
    resident_blocks,
    split_k_cycles,
)
from tvmopt.kernels.cuda.simt.config import SimtConfig
from tvmopt.kernels.cuda.simt.schedule import NAME, why_not_simt
from tvmopt.kernels.ranked import Ranked

_ROWS = (16, 32, 64, 96, 128, 256)
_TILES = ((2, 2), (2, 4), (4, 2), (4, 4), (4, 8), (8, 4), (8, 8), (8, 16), (16, 8))
_STEPS = (8, 16, 32)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Most unrolled multiply-adds of a K block; half of it for GEMMs of fewer multiply-adds than
# ``_LONG``: nvcc takes seconds over more, and gains little.
_MOST_UNROLLED, _LONG = 2048, 2**36
# Registers beyond accumulators, fragments and staging; registers of bounds checks.
_OTHER_REGISTERS, _GUARD_REGISTERS = 30, 8


def simt_matmul_hints(gemm: GemmForm, arch: CudaArch) -> list[Ranked[SimtConfig]]:
    """Return all configurations that may pay, fastest predicted first."""
    problem = matmul_problem(gemm)
    found = [simt_matmul_cost(problem, config) for config in _configs(problem, arch)]
    right = (one for one in found if one is not None)
    return sorted(right, key=lambda one: (one.cycles, _distinct(one.hint)))


def _distinct(config: SimtConfig) -> int:
    """Return the distinct elements of a K row that a warp reads from shared memory.

    Ties of the cost model differ in it: 16 x 600 x 5120 and 16 x 2560 x 1000 are up to 10 % faster
    with 4 x 16 threads than with 8 x 8 (H200, 2026-11-28).
    """
    (bm, bn), (tm, tn) = config.tile, config.threads
    lanes = config.warp_rows
    return bm // tm * lanes + bn // tn * (config.arch.warp // lanes)


def _configs(problem: MatmulProblem, arch: CudaArch) -> Iterator[SimtConfig]:
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
            config = SimtConfig(
                template=NAME,
                arch=arch,
                tile=(bm, bn),
                threads=(tm, tn),
                k_block=step,
                stages=2 if problem.depth > step * split else 1,
                raster_group=8,
                split_k=split,
                warp_rows=lanes,
            )
            if 2 * arch.warp <= tm * tn <= 512 and why_not_simt(config) is None:
                yield config


def simt_matmul_cost(problem: MatmulProblem, config: SimtConfig) -> Ranked[SimtConfig] | None:
    """Return ``config`` with its predicted cycles; None when it does not fit the GPU."""
    arch, costs = config.arch, config.arch.costs
    (bm, bn), (tm, tn), step = config.tile, config.threads, config.k_block
    threads, rows, columns = tm * tn, bm // tm, bn // tn
    words = max(1.0, itemsize(problem.dtype) / 4)
    ragged = problem.rows % bm or problem.columns % bn or problem.depth % (step * config.split_k)
    registers = int(
        rows * columns * max(1.0, itemsize(problem.accumulator) / 4)
        + (rows + columns) * words
        + costs.staged_register_share * (bm + bn) * step / threads * words
        + _OTHER_REGISTERS
        + (_GUARD_REGISTERS if ragged else 0)
    )
    size = itemsize(problem.dtype)
    smem = int(config.stages * step * (bm + bn + 8) * size)
    spilled = max(0, registers - arch.registers_thread)
    resident = resident_blocks(arch, threads, min(registers, arch.registers_thread), smem)
    if resident == 0 or spilled > 16:
        return None
    tiles = grid(problem, arch, config.tile, config.split_k, resident)
    warps = threads / arch.warp
    steps = math.ceil(problem.depth / (step * config.split_k))
    # Cycles of one K block of one tile that has the SM to itself.
    rate = arch.fp32_fma / arch.fma(problem.dtype) if problem.dtype == "float64" else 1.0
    lanes = arch.warp * arch.partitions / arch.fp32_fma
    multiply = warps * rows * columns * step * rate * lanes / arch.partitions
    moved = sum(_moves(problem, config, n) for n in range(2))
    fetches = (rows + columns) * step * size / 16
    issue = warps * (rows * columns * step * rate * lanes + fetches + moved) / arch.partitions
    shared = warps * (fetches * costs.shared_return_cycles + moved * 2)
    busy = (issue**3 + shared**3) ** (1 / 3)
    concurrent = warps / arch.partitions * tiles.concurrent
    stall = 1.0 + costs.lone_warp_stall_share / max(0.25, concurrent)
    one = busy * stall * (1.0 + costs.barrier_stall_share / tiles.concurrent)
    finish = warps * rows * columns * 4.0 * lanes
    compute = tiles.tiles_per_sm * (steps * one + finish) + costs.simt_fill_cycles
    compute *= costs.clock_ratio
    dram, l2 = memory_cycles(problem, arch, config.tile, config.raster_group)
    second = split_k_cycles(problem, arch, config.split_k)
    dram *= _partial_lines(problem, config)
    total = math.hypot(max(compute, l2), dram) + costs.launch_cycles + second
    per_sm = tiles.tiles_per_sm
    facts = (compute, dram, l2, multiply * steps * per_sm, concurrent, float(per_sm))
    return Ranked(config, total, facts)


def _partial_lines(problem: MatmulProblem, config: SimtConfig) -> float:
    """Return the slowdown of DRAM by K blocks that read parts of 128-byte lines.

    Fitted to 23 kernels of 16 x 4096 x 4096 on an H200: the cube root of the parts of a line. L2
    holds the lines of smaller operands from one K block to the next.
    """
    arch = config.arch
    if sum(problem.operand_bytes) <= arch.costs.l2_resident_share * arch.l2_bytes:
        return 1.0
    largest = max(range(2), key=lambda n: problem.operand_bytes[n])
    run = config.k_block * problem.sizes[largest]
    return max(1.0, arch.line / run) ** (1 / 3) if problem.k_major[largest] else 1.0


def _moves(problem: MatmulProblem, config: SimtConfig, n: int) -> float:
    """Return a thread's instructions to copy a K block of operand ``n`` to shared memory."""
    count = config.k_block * config.tile[n] / math.prod(config.threads)
    inner = config.k_block if problem.k_major[n] else config.tile[n]
    vector = math.gcd(
        min(problem.runs[n], int(16 / max(problem.sizes[n], itemsize(problem.dtype)))),
        max(1, int(count)),
        inner,
    )
    stores = count if problem.k_major[n] else count / vector
    ragged = 1.0 if problem.runs[n] > 1 else 2.0
    return ragged * count / vector + stores
