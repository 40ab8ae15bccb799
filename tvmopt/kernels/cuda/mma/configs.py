"""Enumerate configurations of the mma.sync GEMM, ranked by predicted cycles."""

from __future__ import annotations

import dataclasses
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
    pack_cycles,
    packed_problem,
    resident_blocks,
    sum_cycles,
)
from tvmopt.kernels.cuda.common.product import Product, normalise
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.mma.schedule import NAME, mma_of, why_not_mma
from tvmopt.kernels.ranked import Ranked

_EDGES = (16, 32, 64, 128, 256)
_WARPS = ((16, 16), (16, 32), (32, 16), (32, 32), (32, 64), (64, 32), (64, 64))
_STEP_BYTES = (32, 64, 128)
_STAGES = (5, 4, 3, 2)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
_MOST_REGISTERS = 255
# Registers of a thread beyond accumulators and fragments.
_OTHER_REGISTERS = 40
# Share of the tensor cores' rate that mma.sync reaches: from Hopper on only warpgroup MMA (wgmma)
# reaches it all.
_WARP_RATE, _HOPPER_WARP_RATE = 0.9, 0.62
# Cycles for which a 128-byte line from L2 keeps the shared-memory port from fragment loads; how
# many times as long where it goes through registers; share of the port's time that is exposed
# without double-buffered fragments.
_LINE, _LINE_CYCLES = 128, 3.05
_THROUGH_REGISTERS, _NOT_AHEAD = 1.5, 0.3
# Cycles of that port for a load and a store of a warp, of any width.
_MOVE_CYCLES = 4.0
# Latency of a copy in cycles: the stages in flight must cover it.
_LATENCY = 1300.0
_FILL = 1500.0


def mma_hints(
    func: tirx.PrimFunc | Product, arch: CudaArch, stages: int = 0, async_copy: bool = True
) -> list[Ranked[CudaHint]]:
    """Return all configurations that may pay, ranked; none when the template does not fit.

    Args:
        func: A function, or its GEMM in normal form.
        arch: The GPU.
        stages: Most pipeline stages; 0 for as many as pay.
        async_copy: Whether to allow cp.async.
    """
    product = func if isinstance(func, Product) else normalise(func)
    if product is None:
        return []
    problem = matmul_problem(product)
    found = []
    for pack, seen in _packings(product, problem):
        for hint in _hints(product, seen, arch, stages, async_copy):
            options = (*hint.options, ("pack", pack)) if pack else hint.options
            cost = mma_cost(seen, dataclasses.replace(hint, options=options))
            if cost is not None:
                found.append(cost)
    return sorted(found, key=lambda one: one.cycles)


def _packings(product: Product, problem: MatmulProblem) -> Iterator[tuple[int, MatmulProblem]]:
    """Yield values of option ``pack`` and the problem after that packing."""
    yield 0, problem
    size = itemsize(problem.dtype)
    # Operands that 16-byte copies cannot move unchanged, or not asynchronously.
    slow = [
        operand.run * size < 16 or operand.size != size or not operand.plain
        or (size == 1 and operand.contiguous != "k")
        for operand in product.copies
    ]  # fmt: skip
    if any(slow):
        yield slow[0] + 2 * slow[1], packed_problem(problem, (slow[0], slow[1]))


def copies_asynchronously(problem: MatmulProblem, rows: int, columns: int, step: int) -> bool:
    """Whether TVM generates cp.async for both copies, for tiles of that size.

    It copies 4, 8 or 16 bytes at once, without arithmetic, and zero-fills only floating-point
    dtypes out of bounds.
    """
    size = itemsize(problem.dtype)
    for n, (edge, tile) in enumerate(((problem.rows, rows), (problem.columns, columns))):
        ragged = bool(edge % tile or problem.depth % step) and not problem.packed[n]
        if problem.runs[n] * size < 4 or problem.sizes[n] != size or not problem.plain[n]:
            return False
        if size == 1 and (ragged or not problem.along_k[n]):
            return False
    return True


def _hints(
    product: Product, problem: MatmulProblem, arch: CudaArch, most: int, async_copy: bool
) -> Iterator[CudaHint]:
    """Yield tiles, pipelines and split-K factors that fit the problem and the template."""
    plain = CudaHint(NAME, arch)
    mma = mma_of(product, plain)
    if mma is None or problem.depth < 2:
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
            for stages, ahead in _pipelines(
                problem, arch, (bm, bn), step * split, most, async_copy
            ):
                hint = CudaHint(
                    template=NAME,
                    arch=arch,
                    block=(bm, bn),
                    warp=(wm, wn),
                    rstep=step,
                    stages=stages,
                    async_copy=stages > 1
                    and _is_async(problem, arch, (bm, bn), step * split, async_copy),
                    raster=8,
                    split_k=split,
                    options=(("ahead", 1),) if ahead and step > mma.depth else (),
                )
                if not why_not_mma(hint, mma):
                    yield hint


def _is_async(
    problem: MatmulProblem, arch: CudaArch, block: tuple[int, int], step: int, wanted: bool
) -> bool:
    return wanted and arch.has_async_copy and copies_asynchronously(problem, *block, step)


def _pipelines(
    problem: MatmulProblem,
    arch: CudaArch,
    block: tuple[int, int],
    step: int,
    most: int,
    async_copy: bool,
) -> Iterator[tuple[int, bool]]:
    """Yield the pipelines that apply: stages, and whether fragments are double-buffered."""
    steps = math.ceil(problem.depth / step)
    is_async = _is_async(problem, arch, block, step, async_copy)
    for stages in _STAGES if is_async else (2, 1):
        if stages <= max(1, steps) and (not most or stages <= most):
            yield stages, False
            if is_async and stages > 2:
                yield stages, True


def shared_bytes(problem: MatmulProblem, hint: CudaHint) -> int:
    """Return the shared memory of a thread block: the stages, or the spilled accumulators."""
    size = itemsize(problem.dtype)
    pad = int(16 / size)
    (bm, bn), step = hint.block, hint.rstep
    in_flight = 0.0
    for edge, along in zip((bm, bn), problem.along_k, strict=True):
        rows, width = (edge, step) if along or itemsize(problem.dtype) == 1 else (step, edge)
        in_flight += rows * (width + pad) * size
    row = bn * itemsize(problem.sums)
    return int(max(hint.stages * in_flight, bm * (row + (32 - row) % 128)))


def mma_cost(problem: MatmulProblem, hint: CudaHint) -> Ranked[CudaHint] | None:
    """Return ``hint`` with its predicted cycles; None when it does not fit the GPU."""
    arch = hint.arch
    (bm, bn), (wm, wn), step = hint.block, hint.warp, hint.rstep
    size = itemsize(problem.dtype)
    warps = (bm // wm) * (bn // wn)
    staged = 0.0
    if not hint.async_copy and hint.stages > 1:
        staged = (bm + bn) * step * size / 4 / (warps * arch.warp)
    registers = int(
        wm * wn / arch.warp * itemsize(problem.sums) / 4
        + (wm + wn) / 16 * 4 * (2 if hint.option("ahead") else 1)
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
    # Fewer warps than tensor cores leave some idle.
    busy = min(1.0, warps * tiles.together / arch.partitions)
    multiply = bm * bn * step / (arch.fma(problem.dtype) * rate * busy)
    loads = warps * (wm + wn) * step * size / arch.smem_bandwidth
    copies = sum(_copies(problem, hint, n, warps * arch.warp) for n in range(2))
    issue = warps * (wm / 16 * wn / 8 * step * size / 32 * 2 + copies * 3 + 20) / arch.partitions
    # Data from L2 and fragment loads share the single port of shared memory.
    lines = sum(_lines(problem, hint, n) for n in range(2))
    brought = lines * _LINE_CYCLES
    if not hint.async_copy:  # exposed, and stored by the threads
        brought = max(brought * _THROUGH_REGISTERS, warps * copies * _MOVE_CYCLES)
    port = loads + brought
    one = (multiply**8 + port**8 + issue**8) ** 0.125
    if hint.async_copy and not hint.option("ahead"):
        one += port * _NOT_AHEAD / tiles.together
    one += max(0.0, _LATENCY - max(0, hint.stages - 1) * one * tiles.together) / tiles.together
    finish = bm * bn * itemsize(problem.sums) * 3 / arch.smem_bandwidth + _LATENCY / tiles.together
    compute = tiles.turns * (steps * one + finish) + _FILL
    dram, l2 = memory_cycles(problem, arch, hint.block, hint.raster)
    second = sum_cycles(problem, arch, hint.split_k) + pack_cycles(problem, arch)
    total = max(compute, dram, l2) + LAUNCH + second
    facts = (compute, dram, l2, lines, busy, float(tiles.turns))
    return Ranked(hint, total, facts)


def _lines(problem: MatmulProblem, hint: CudaHint, n: int) -> float:
    """Return the 128-byte lines that a K block of a tile reads of operand ``n``."""
    run = (hint.rstep if problem.along_k[n] else hint.block[n]) * problem.sizes[n]
    if problem.runs[n] == 1 and not problem.plain[n]:
        run = problem.sizes[n]
    return hint.rstep * hint.block[n] * problem.sizes[n] / min(_LINE, run)


def _copies(problem: MatmulProblem, hint: CudaHint, n: int, threads: int) -> float:
    """Return the copy instructions of a thread in a K block for operand ``n``."""
    size = itemsize(problem.dtype)
    vector = min(problem.runs[n], int(16 / max(size, problem.sizes[n])))
    if itemsize(problem.dtype) == 1 and not problem.along_k[n]:
        vector = 1
    return hint.rstep * hint.block[n] / threads / max(1, vector)
