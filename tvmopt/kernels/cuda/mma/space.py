"""Enumerate configurations of the mma.sync GEMM, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tvmopt.device.cuda import CudaArch
from tvmopt.device.dtypes import itemsize, tensor_core_operand
from tvmopt.kernels.cuda.common.gemm_form import GemmForm
from tvmopt.kernels.cuda.common.matmul_problem import (
    MatmulProblem,
    grid,
    matmul_problem,
    memory_cycles,
    pack_cycles,
    packed_problem,
    resident_blocks,
    split_k_cycles,
)
from tvmopt.kernels.cuda.intrinsics.mma import ldmatrix_transposes
from tvmopt.kernels.cuda.mma.config import MmaConfig
from tvmopt.kernels.cuda.mma.schedule import NAME, mma_of, why_not_mma
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal

_EDGES = (16, 32, 64, 128, 256)
_WARPS = ((16, 16), (16, 32), (32, 16), (32, 32), (32, 64), (64, 32), (64, 64))
_STEP_BYTES = (32, 64, 128)
_STAGES = (5, 4, 3, 2)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
# Loads into registers that a thread has in flight.
_LOADS = 4
# Registers of a thread beyond accumulators and fragments.
_OTHER_REGISTERS = 40


def mma_hints(
    gemm: GemmForm, arch: CudaArch, stages: int = 0, async_copy: bool = True
) -> list[Ranked[MmaConfig]]:
    """Return all configurations that may pay, fastest predicted first; none without mma.sync.

    Args:
        gemm: A GEMM in normal form.
        arch: The GPU.
        stages: Most pipeline stages; 0 for as many as pay.
        async_copy: Whether to allow cp.async.
    """
    found = []
    for problem in _packings(gemm):
        for config in _configs(gemm, problem, arch, stages, async_copy):
            cost = mma_cost(problem, config)
            if cost is not None:
                found.append(cost)
    return sorted(found, key=lambda one: one.cycles)


def _packings(gemm: GemmForm) -> Iterator[MatmulProblem]:
    """Yield the problem as it is, and after packing where that may pay."""
    problem = matmul_problem(gemm)
    yield problem
    size = itemsize(problem.dtype)
    # Operands that 16-byte copies cannot move unchanged, or not asynchronously.
    slow = [
        operand.run * size < 16 or operand.size != size or not operand.plain
        or (operand.contiguous != "k" and not ldmatrix_transposes(problem.dtype))
        for operand in gemm.operands
    ]  # fmt: skip
    if any(slow):
        yield packed_problem(problem, (slow[0], slow[1]))


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
        if size == 1 and (ragged or not problem.k_major[n]):
            return False
    return True


def _configs(
    gemm: GemmForm, problem: MatmulProblem, arch: CudaArch, most: int, async_copy: bool
) -> Iterator[MmaConfig]:
    """Yield tiles, pipelines and split-K factors that fit the problem and the template."""
    mma = mma_of(gemm, arch)
    if isinstance(mma, Refusal) or problem.depth < 2:
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
                if any((stages - 1) * step % period for period in problem.periods):
                    continue
                if ahead and step <= mma.depth:
                    continue  # a K block of one MMA has no next fragment
                config = MmaConfig(
                    template=NAME,
                    arch=arch,
                    tile=(bm, bn),
                    warp_tile=(wm, wn),
                    k_block=step,
                    stages=stages,
                    async_copy=stages > 1
                    and _is_async(problem, arch, (bm, bn), step * split, async_copy),
                    split_k=split,
                    raster_group=8,
                    double_buffer_fragments=ahead,
                    pack_a=problem.packed[0],
                    pack_b=problem.packed[1],
                )
                if why_not_mma(config, mma) is None:
                    yield config


def _is_async(
    problem: MatmulProblem, arch: CudaArch, tile: tuple[int, int], step: int, wanted: bool
) -> bool:
    return wanted and arch.has_async_copy and copies_asynchronously(problem, *tile, step)


def _pipelines(
    problem: MatmulProblem,
    arch: CudaArch,
    tile: tuple[int, int],
    step: int,
    most: int,
    async_copy: bool,
) -> Iterator[tuple[int, bool]]:
    """Yield the pipelines that apply: stages, and whether fragments are double-buffered."""
    steps = math.ceil(problem.depth / step)
    is_async = _is_async(problem, arch, tile, step, async_copy)
    for stages in _STAGES if is_async else (2, 1):
        if stages <= max(1, steps) and (not most or stages <= most):
            yield stages, False
            if is_async and stages > 2:
                yield stages, True


def shared_bytes(problem: MatmulProblem, config: MmaConfig) -> int:
    """Return the shared memory of a thread block: the stages, or the spilled accumulators."""
    size = itemsize(problem.dtype)
    pad = int(16 / size)
    (bm, bn), step = config.tile, config.k_block
    in_flight = 0.0
    for edge, along in zip((bm, bn), problem.k_major, strict=True):
        along = along or not ldmatrix_transposes(problem.dtype)
        rows, width = (edge, step) if along else (step, edge)
        in_flight += rows * (width + pad) * size
    row = bn * itemsize(problem.accumulator)
    return int(max(config.stages * in_flight, bm * (row + (32 - row) % 128)))


def mma_cost(problem: MatmulProblem, config: MmaConfig) -> Ranked[MmaConfig] | None:
    """Return ``config`` with its predicted cycles; None when it does not fit the GPU."""
    arch, costs = config.arch, config.arch.costs
    (bm, bn), (wm, wn), step = config.tile, config.warp_tile, config.k_block
    size, warps = itemsize(problem.dtype), config.warps
    staged = 0.0
    if not config.async_copy and config.stages > 1:
        staged = (bm + bn) * step * size / 4 / (warps * arch.warp)
    registers = int(
        wm * wn / arch.warp * itemsize(problem.accumulator) / 4
        + (wm + wn) / 16 * 4 * (2 if config.double_buffer_fragments else 1)
        + staged
        + _OTHER_REGISTERS
    )
    if registers > arch.registers_thread:
        return None
    resident = resident_blocks(arch, warps * arch.warp, registers, shared_bytes(problem, config))
    if resident == 0:
        return None
    tiles = grid(problem, arch, config.tile, config.split_k, resident)
    steps = math.ceil(problem.depth / (step * config.split_k))
    rate = costs.hopper_mma_sync_rate if arch.has_wgmma else costs.mma_sync_rate
    # Fewer warps than tensor cores leave some idle.
    busy = min(1.0, warps * tiles.concurrent / arch.partitions)
    peak = arch.fma(tensor_core_operand(problem.dtype).name)
    multiply = bm * bn * step / (peak * rate * busy)
    loads = warps * (wm + wn) * step * size / arch.smem_bandwidth
    copied = [_copies(problem, config, n, warps * arch.warp) for n in range(2)]
    copies = sum(copied)
    issue = warps * (wm / 16 * wn / 8 * step * size / 32 * 2 + copies * 3 + 20) / arch.partitions
    # Data from L2 and fragment loads share the single port of shared memory.
    lines = sum(_lines(problem, config, n) for n in range(2))
    brought = lines * costs.shared_line_cycles
    if not config.async_copy:  # exposed, and stored by the threads
        stores = warps * copies * costs.shared_access_cycles
        brought = max(brought * costs.register_copy_ratio, stores)
    port = loads + brought
    one = (multiply**8 + port**8 + issue**8) ** 0.125
    if config.async_copy and not config.double_buffer_fragments:
        one += port * costs.exposed_port_share / tiles.concurrent
    if arch.has_wgmma:
        one *= costs.mma_time_ratio
    gathers = sum(c for n, c in enumerate(copied) if problem.gathers(n))
    sharing = max(1.0, warps * tiles.concurrent / arch.partitions)  # warps of a scheduler
    if config.async_copy:
        gather = costs.gather_stall_cycles + sharing * costs.gather_instructions
    else:
        stall, instructions = costs.gather_stall_cycles, costs.gather_instructions
        if bm % problem.image_row:
            ahead_of_use = config.stages > 1
            stall = costs.gather_ahead_cycles if ahead_of_use else costs.gather_load_cycles
        if gathers * step * size > costs.unrolled_gather_bytes:
            instructions *= costs.rolled_gather_ratio
        gather = max(stall, sharing * instructions)
    gather *= gathers / tiles.concurrent
    if arch.has_wgmma:  # fitted there, to the small convolutions that wgmma leaves to mma.sync
        windows = sum(c for n, c in enumerate(copied) if problem.padded[n]) - gathers
        gather += costs.window_copy_cycles * (1.0 + sharing) * windows / tiles.concurrent
    # cp.async copies are issued between the multiplications, loads into registers ahead of them.
    one = one + gather if config.async_copy else (one**8 + gather**8) ** 0.125
    # Loads into registers wait for one access; cp.async under load, but not for the first stages.
    access = _load_latency(problem, arch)
    latency = costs.mma_copy_latency_cycles if config.async_copy else access
    ahead = max(0, config.stages - 1)
    if config.async_copy:
        # The stages in flight arrive together, so that a wait is followed by ``ahead`` K blocks.
        waits = math.ceil(max(0, steps - ahead) / ahead)
    else:
        waits = steps
        latency *= math.ceil((sum(copied) - gathers) / _LOADS)
    exposed = max(0.0, latency - ahead * one * tiles.concurrent) / tiles.concurrent
    spilled = bm * bn * itemsize(problem.accumulator) * 3
    finish = spilled / arch.smem_bandwidth + access / tiles.concurrent
    compute = tiles.tiles_per_sm * (steps * one + waits * exposed + finish)
    compute += costs.mma_fill_cycles if config.async_copy else 0.0
    dram, l2 = memory_cycles(problem, arch, config.tile, config.raster_group)
    second = split_k_cycles(problem, arch, config.split_k) + pack_cycles(problem, arch)
    # As with wgmma, neither of compute and DRAM traffic hides all of the other.
    shared = (max(compute, l2) ** 3 + (dram / costs.stream_bandwidth_share) ** 3) ** (1 / 3)
    total = shared + costs.mma_launch_cycles + second
    facts = (compute, dram, l2, lines, busy, float(tiles.tiles_per_sm))
    return Ranked(config, total, facts)


def _load_latency(problem: MatmulProblem, arch: CudaArch) -> float:
    """Return the cycles of a load: from L2 where it holds the operands, else from DRAM."""
    fits = sum(problem.operand_bytes) <= arch.costs.l2_resident_share * arch.l2_bytes
    return arch.costs.l2_latency_cycles if fits else arch.costs.dram_latency_cycles


def _lines(problem: MatmulProblem, config: MmaConfig, n: int) -> float:
    """Return the 128-byte lines that a K block of a tile reads of operand ``n``."""
    edge = (problem.rows, problem.columns)[n]
    whole = problem.batch * edge * problem.depth * problem.sizes[n]
    if problem.k_major[n] and problem.depth <= config.k_block and problem.operand_bytes[n] >= whole:
        # A K block holds whole rows, which follow each other in memory.
        return config.tile[n] * problem.depth * problem.sizes[n] / config.arch.line
    run = (config.k_block if problem.k_major[n] else config.tile[n]) * problem.sizes[n]
    if problem.runs[n] == 1 and not problem.plain[n]:
        run = problem.sizes[n]
    lines = config.k_block * config.tile[n] * problem.sizes[n] / min(config.arch.line, run)
    # L1 holds the few lines of an image that a tile gathers from, as often as windows overlap.
    return lines * min(1.0, problem.operand_bytes[n] / whole) if problem.gathers(n) else lines


def _copies(problem: MatmulProblem, config: MmaConfig, n: int, threads: int) -> float:
    """Return the copy instructions of a thread in a K block for operand ``n``."""
    size = itemsize(problem.dtype)
    vector = min(problem.runs[n], int(16 / max(size, problem.sizes[n])))
    if not (problem.k_major[n] or ldmatrix_transposes(problem.dtype)):
        vector = 1
    return config.k_block * config.tile[n] / threads / max(1, vector)
