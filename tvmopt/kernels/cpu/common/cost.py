"""What a register tile costs: arithmetic, loads, traffic through the caches, cores left idle.

The model of Roller (OSDI'22) and Welder (OSDI'23) for a CPU: a roofline over execution ports and
cache levels for one tile, times the tiles of the busiest core. Cycles of one core; only ratios
between configurations matter.
"""

from __future__ import annotations

import dataclasses
import math

from tvmopt.device.cpu import CpuArch

# Cycles to enter a parallel region, to begin and end a tile, and to branch around a loop body.
LAUNCH, _TILE, _BRANCH = 12_000.0, 8.0, 2.0
# Bytes a cycle of copying, the padded input or a weight; and of reading what another core has
# written and still keeps: 0.3 where cores share no cache, more where they do. 2 to 6 serve both.
COPY, REMOTE = 12.0, 4.0
# How much of the shorter of arithmetic and traffic is not hidden behind the other; the same of
# multiply-adds and loads from L1; and what a branch around every row costs.
_OVERLAP, _LOADED, _GUARDED = 1.0, 0.25, 1.2
# Reductions of at most this many steps become straight-line code, in which LLVM loads the data of
# every other row early and then has too few registers.
_STRAIGHT = 6
# Cycles to write one accumulator to L1 and read it again.
_SPILL = 0.5
# Bytes that might have been written while a run of the output ends and the next begins.
_STRIDED = 256.0
#: Share of a cache that a working set may fill before it is taken to miss.
FILL = 0.4


@dataclasses.dataclass(frozen=True)
class Tile:
    """One configuration of a register tile, in numbers.

    Attributes:
        rows: Rows of accumulators.
        vectors: Vectors side by side.
        depth: Multiply-adds that one accumulator sums up.
        tiles: Tiles of the whole function.
        weight_block: Bytes of weight that one tile reads.
        weight_reuse: Bytes touched between two uses of the same weight.
        weight_uses: Tiles of one core that use the same weight; the first finds it in L3.
        spills: How often unfinished sums go to memory and back.
        data_block: Bytes of data that one tile reads for the first time.
        data_reuse: Bytes touched between two uses of the same data.
        out_bytes: Bytes that one tile writes and its epilogue reads.
        out_run: How many of them lie side by side, with those of the tiles right after it.
        out_total: Bytes of the whole output.
        imbalance: Work of the busiest core over the average.
        parallel: Whether the tiles are shared out over the cores.
        inner: Extent of the innermost reduction loop.
        guarded: Whether rows may lie outside and each is guarded by a branch, TVM cutting none off.
        weight_rounds: How often one core comes back to the same weight after it has been through
            all others.
        weight_far: Bytes touched between two such rounds.
        step: Cycles of one of the ``depth`` steps where no vectors multiply; 0 where they do.
    """

    rows: int
    vectors: int
    depth: int
    tiles: int
    weight_block: float
    weight_reuse: float
    weight_uses: float
    spills: int
    data_block: float
    data_reuse: float
    out_bytes: float
    out_run: float
    out_total: float
    imbalance: float
    parallel: bool
    inner: int = 1
    guarded: bool = False
    weight_rounds: float = 1.0
    weight_far: float = 1.0
    step: float = 0.0


@dataclasses.dataclass(frozen=True)
class Cost:
    """Modelled cycles, in parts.

    Attributes:
        compute: Of one tile, if memory were free.
        traffic: Of one tile, if arithmetic were free.
        overhead: Of one tile: stores, epilogue, loop control.
        total: Of the busiest core for everything.
    """

    compute: float
    traffic: float
    overhead: float
    total: float


def tile_cost(tile: Tile, arch: CpuArch) -> Cost:
    """What all tiles cost."""
    accumulators = tile.rows * tile.vectors
    step = tile.step or _vector_step(tile, arch)
    compute = tile.depth * step
    compute += tile.spills * accumulators * _SPILL
    again = (tile.weight_uses - tile.weight_rounds) / bandwidth(tile.weight_reuse, arch)
    again += (tile.weight_rounds - 1) / bandwidth(tile.weight_far, arch)
    traffic = tile.weight_block * (1 / arch.l3_bandwidth + again) / tile.weight_uses
    traffic += tile.data_block / bandwidth(tile.data_reuse, arch)
    apart = 1 + _STRIDED / max(64.0, tile.out_run)
    traffic += tile.out_bytes * apart / bandwidth(tile.out_total / arch.cores, arch)
    overhead = tile.out_bytes / arch.simd_bytes * 2.0 + _TILE
    one = max(compute, traffic) + _OVERLAP * min(compute, traffic) + overhead
    shared = tile.parallel and arch.cores > 1
    total = tile.tiles * one * tile.imbalance / (arch.cores if shared else 1)
    return Cost(compute, traffic, overhead, total + (LAUNCH if shared else 0.0))


def _vector_step(tile: Tile, arch: CpuArch) -> float:
    """Cycles of one step of the reduction: a tile of multiply-adds, and what it loads."""
    accumulators = tile.rows * tile.vectors
    multiply = accumulators / arch.fma_ports
    load = (tile.rows + tile.vectors) / arch.load_ports
    latency = arch.fma_latency * (1.0 if accumulators < arch.fma_ports * arch.fma_latency else 0.0)
    step = max(multiply, load, latency) + _LOADED * min(multiply, load)
    needed = accumulators + tile.vectors + 1
    if tile.depth <= _STRAIGHT:
        needed += tile.vectors + tile.rows // 2
    if needed > arch.vector_registers:  # accumulators live in memory
        step += 1.5 * (needed - arch.vector_registers)
    step += _BRANCH / min(4, max(1, tile.inner))
    return step * _GUARDED if tile.guarded else step


def bandwidth(working_set: float, arch: CpuArch) -> float:
    """Bytes a cycle and core from the smallest cache that holds ``working_set`` bytes."""
    levels = (
        (arch.l1_bytes, arch.l1_bandwidth),
        (arch.l2_bytes, arch.l2_bandwidth),
        (arch.l3_bytes / max(1, arch.cores), arch.l3_bandwidth),
    )
    for size, rate in levels:
        if working_set <= FILL * size:
            return rate
    return arch.dram_bandwidth


def imbalance(tasks: int, cores: int) -> float:
    """Tasks of the busiest core over the average, when each gets one contiguous share."""
    return math.ceil(tasks / cores) * cores / tasks
