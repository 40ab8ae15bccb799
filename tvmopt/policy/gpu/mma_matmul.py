"""Configurations of the product of matrices on tensor cores by warp, the most promising first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tvm import tirx

from tvmopt.arch.cuda import CudaArch, itemsize
from tvmopt.intrin.mma import MmaIntrinsic
from tvmopt.policy.gpu.matmul_problem import (
    LAUNCH,
    MatmulProblem,
    grid,
    matmul_problem,
    memory_cycles,
    resident_blocks,
    sum_cycles,
)
from tvmopt.policy.gpu.ranked import GpuRanked
from tvmopt.schedule.gpu.hint import GpuHint
from tvmopt.schedule.gpu.mma_matmul import mma_of, why_not_mma
from tvmopt.schedule.gpu.product import Product, normalise

_EDGES = (16, 32, 64, 128, 256)
_WARPS = ((16, 16), (16, 32), (32, 16), (32, 32), (32, 64), (64, 32), (64, 64))
_STEP_BYTES = (32, 64, 128)
_STAGES = (4, 3, 2)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_MOST_REGISTERS = 255
# Registers of a thread beyond sums and fragments.
_OTHER_REGISTERS = 40
# The part of the tensor cores' rate that instructions of one warp reach: from Hopper on only those
# of four warps together reach it all.
_WARP_RATE, _HOPPER_WARP_RATE = 0.92, 0.62
# Cycles of a step that nothing hides when a tile is alone on its multiprocessor, and of a barrier.
_WAIT, _BARRIER = 220.0, 40.0
_FILL = 1500.0


def mma_hints(
    func: tirx.PrimFunc | Product, arch: CudaArch, stages: int = 0, async_copy: bool = True
) -> list[GpuRanked]:
    """Every configuration that may pay, ranked; none when the template does not fit.

    Args:
        func: A function, or its product in the normal form.
        arch: The GPU.
        stages: Most steps in flight; 0 is as many as pay.
        async_copy: Whether copies may be asynchronous.
    """
    product = func if isinstance(func, Product) else normalise(func)
    if product is None:
        return []
    problem = matmul_problem(product)
    found = []
    for hint in _hints(product, problem, arch, stages, async_copy):
        cost = mma_cost(problem, hint)
        if cost is not None:
            found.append(cost)
    return sorted(found, key=lambda one: one.cycles)


def copies_asynchronously(problem: MatmulProblem, rows: int, columns: int, step: int) -> bool:
    """Whether TVM makes cp.async of both copies, for tiles of that size.

    It copies 4, 8 or 16 bytes at once, without arithmetic, and knows zeros of floating point only
    for what lies outside.
    """
    size = itemsize(problem.dtype)
    wide = all(run * size >= 4 for run in problem.runs)
    ragged = bool(problem.rows % rows or problem.columns % columns or problem.depth % step)
    same = all(s == size for s in problem.sizes)
    straight = problem.dtype != "int8" or (all(problem.along_k) and not ragged)
    return wide and same and straight and all(problem.plain)


def _hints(
    product: Product, problem: MatmulProblem, arch: CudaArch, most: int, async_copy: bool
) -> Iterator[GpuHint]:
    plain = GpuHint("mma_matmul", arch)
    mma = mma_of(product, plain)
    if mma is None:
        return
    size = itemsize(problem.dtype)
    for (bm, bn), (wm, wn) in itertools.product(itertools.product(_EDGES, _EDGES), _WARPS):
        if bm % wm or bn % wn or not 2 <= (bm // wm) * (bn // wn) <= 16:
            continue
        if bm >= 2 * max(16, problem.rows) or bn >= 2 * max(16, problem.columns):
            continue
        tiles = problem.batch * math.ceil(problem.rows / bm) * math.ceil(problem.columns / bn)
        for wide, split in itertools.product(_STEP_BYTES, _SPLITS):
            step = int(wide / size)
            if split > 1 and (2 * tiles > arch.sms or problem.depth < 4 * split * step):
                continue
            hint = _filled(problem, arch, (bm, bn), (wm, wn), step, split, most, async_copy, mma)
            if hint is not None:
                yield hint


def _filled(
    problem: MatmulProblem,
    arch: CudaArch,
    block: tuple[int, int],
    warp: tuple[int, int],
    step: int,
    split: int,
    most: int,
    async_copy: bool,
    mma: MmaIntrinsic,
) -> GpuHint | None:
    """The hint with the most steps in flight that shared memory holds; None when none fits."""
    is_async = (
        async_copy and arch.has_async_copy and copies_asynchronously(problem, *block, step * split)
    )
    steps = math.ceil(problem.depth / (step * split))
    for stages in _STAGES if is_async else (2, 1):
        if (most and stages > most) or stages > max(1, steps):
            continue
        hint = GpuHint(
            template="mma_matmul",
            arch=arch,
            block=block,
            warp=warp,
            rstep=step,
            stages=stages,
            async_copy=is_async and stages > 1,
            raster=8,
            split_k=split,
        )
        if shared_bytes(problem, hint) <= arch.smem_bytes and not why_not_mma(hint, mma):
            return hint
    return None


def shared_bytes(problem: MatmulProblem, hint: GpuHint) -> int:
    """Shared memory of a thread block: steps in flight, or the sums that follow them."""
    size = itemsize(problem.dtype)
    pad = int(16 / size)
    (bm, bn), step = hint.block, hint.rstep
    in_flight = 0.0
    for edge, along in zip((bm, bn), problem.along_k, strict=True):
        rows, width = (edge, step) if along or problem.dtype == "int8" else (step, edge)
        in_flight += rows * (width + pad) * size
    row = bn * itemsize(problem.sums)
    return int(max(hint.stages * in_flight, bm * (row + (32 - row) % 128)))


def mma_cost(problem: MatmulProblem, hint: GpuHint) -> GpuRanked | None:
    """What ``hint`` is expected to cost; None when it does not fit the GPU."""
    arch = hint.arch
    (bm, bn), (wm, wn), step = hint.block, hint.warp, hint.rstep
    size = itemsize(problem.dtype)
    warps = (bm // wm) * (bn // wn)
    staged = 0.0
    if not hint.async_copy and hint.stages > 1:
        staged = (bm + bn) * step * size / 4 / (warps * arch.warp)
    registers = int(
        wm * wn / arch.warp * itemsize(problem.sums) / 4
        + (wm + wn) / 16 * 4
        + staged
        + _OTHER_REGISTERS
    )
    if registers > _MOST_REGISTERS:
        return None
    resident = resident_blocks(arch, warps * arch.warp, registers, shared_bytes(problem, hint))
    if resident == 0:
        return None
    tiles = grid(problem, arch, hint.block, hint.split_k, resident)
    steps = math.ceil(problem.depth / (step * hint.split_k))
    rate = _HOPPER_WARP_RATE if arch.has_wgmma else _WARP_RATE
    # No more than four warps' worth of tensor cores: fewer warps leave some idle.
    busy = min(1.0, warps * tiles.together / arch.partitions)
    multiply = bm * bn * step / (arch.fma(problem.dtype) * rate * busy)
    loads = warps * (wm + wn) * step * size / arch.smem_bandwidth
    stores = (bm + bn) * step * size / arch.smem_bandwidth
    shared = loads + stores * (1.0 if _is_straight(problem) else 4.0)
    copies = sum(_copies(problem, hint, n, warps * arch.warp) for n in range(2))
    issue = warps * (wm / 16 * wn / 8 * step * size / 32 * 2 + copies * 3 + 20) / arch.partitions
    at_once = (multiply**4 + shared**4 + issue**4) ** 0.25
    hidden = max(1.0, tiles.together * warps / arch.partitions)
    wait = _WAIT if hint.stages < 2 else _BARRIER
    one = at_once + wait / hidden
    finish = bm * bn * itemsize(problem.sums) * 3 / arch.smem_bandwidth
    compute = tiles.turns * (steps * one + finish) + _FILL
    dram, l2 = memory_cycles(problem, arch, hint.block, hint.raster)
    second = sum_cycles(problem, arch, hint.split_k)
    total = max(compute, dram, l2) + 0.1 * min(compute, max(dram, l2)) + LAUNCH + second
    facts = (compute, dram, l2, shared / at_once, busy, float(tiles.turns))
    return GpuRanked(hint, total, facts)


def _is_straight(problem: MatmulProblem) -> bool:
    """Whether copies keep the order of memory."""
    return problem.dtype != "int8" or all(problem.along_k)


def _copies(problem: MatmulProblem, hint: GpuHint, n: int, threads: int) -> float:
    """Copies of a thread in a step for operand ``n``."""
    size = itemsize(problem.dtype)
    vector = min(problem.runs[n], int(16 / max(size, problem.sizes[n])))
    if problem.dtype == "int8" and not problem.along_k[n]:
        vector = 1
    return hint.rstep * hint.block[n] / threads / max(1, vector)
