"""Cost model of a register tile: FMAs, L1 loads, cache traffic, load imbalance.

The model follows Roller (OSDI'22) and Welder (OSDI'23), for a CPU: a roofline over execution ports
and cache levels for one tile, times the tiles of the busiest core. The unit is cycles of one core.
Only ratios between configurations matter.
"""

from __future__ import annotations

import dataclasses
import math

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.intrinsics.base import DotIntrinsic

# Cycles to launch a parallel region, to enter and leave a tile, and of a loop-body branch.
LAUNCH, _TILE, _BRANCH = 12_000.0, 8.0, 2.0
# Bytes per cycle: copy bandwidth (padding, packing); and bandwidth of a read that hits another
# core's private cache: 0.3 without a shared cache, more with one. Values of 2 to 6 suit both.
COPY, REMOTE = 12.0, 4.0
# Fraction of min(compute, traffic) that does not overlap; the same fraction for FMAs and L1 loads;
# and the slowdown factor of a branch around every row.
_OVERLAP, _LOADED, _GUARDED = 1.0, 0.25, 1.2
# L1 loads that one broadcast costs where it is a separate instruction, as with AVX2; AVX-512 and
# NEON broadcast in the FMA. Fit to 1 x 1 and 3 x 3 convolutions on a Zen 3.
_BROADCAST = 1.2
# LLVM fully unrolls reductions of at most this many steps. It then hoists the data loads of half of
# the rows and runs out of registers.
_STRAIGHT = 6
# Cycles to spill one accumulator to L1 and reload it.
_SPILL = 0.5
# Cycles of a reduction step for every vector that has no register.
_SPILL_STEP = 1.5
# Ports for additions and shifts of vectors, per port that multiplies.
_VECTOR_PORTS = 1.5
# Vector instructions that widen bfloat16 to float32 in each reduction step, on x86: load with zero
# extension and shift of a vector of the weight; broadcast of the data, whose scalar is shifted in a
# general register (a float32 is broadcast by the load). See
# benchmarks/results/2026-11-29-bf16-dots.md.
_WIDEN_WEIGHT, _WIDEN_DATA = 2, 1
# Width of the vectors that leave x86 CPUs only the ports of the FMAs for other vector instructions.
_FEW_PORTS_BITS = 512
# Cost of a break between contiguous runs of the output, in bytes of stores.
_STRIDED = 256.0
#: Fraction of a cache that a working set may fill before the model assumes misses.
FILL = 0.4


@dataclasses.dataclass(frozen=True)
class TileNumbers:
    """Cost-model inputs for one configuration of a register tile.

    Attributes:
        rows: Rows of accumulators.
        vectors: Vectors of accumulators per row.
        depth: Reduction steps (vector FMAs) per accumulator.
        tiles: Number of tiles in the whole function.
        weight_block: Bytes of weight that one tile reads.
        weight_reuse: Reuse distance of the weight: bytes touched between two uses.
        weight_uses: Tiles of one core that use the same weight; the first use hits L3.
        spills: Number of times partial sums are spilled to memory and reloaded.
        data_block: Bytes of data that one tile reads for the first time.
        data_reuse: Reuse distance of the data: bytes touched between two uses.
        out_bytes: Bytes that one tile writes and its epilogue reads.
        out_run: Contiguous bytes of output that this tile and its successors write.
        out_total: Bytes of the whole output.
        imbalance: Work of the busiest core over the average.
        parallel: Whether the tiles run in parallel on the cores.
        inner: Extent of the innermost reduction loop.
        guarded: Whether every row is guarded by a bounds check, because TVM does not split off the
            partial tile (loop partition).
        weight_rounds: Number of passes of one core over the whole weight.
        weight_far: Reuse distance between two such passes, in bytes.
        step: Cycles of one of the ``depth`` steps on a matrix unit; 0 for vector FMAs.
        widens: Whether vector FMAs compute in float32 on operands in bfloat16.
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
    widens: bool = False


@dataclasses.dataclass(frozen=True)
class TileCost:
    """Predicted cycles, in parts.

    Attributes:
        compute: Compute-bound cycles of one tile.
        traffic: Memory-bound cycles of one tile.
        overhead: Cycles of one tile for stores, epilogue and loop control.
        total: Cycles of the busiest core for all tiles.
    """

    compute: float
    traffic: float
    overhead: float
    total: float


def tile_cost(tile: TileNumbers, arch: CpuArch) -> TileCost:
    """Return the predicted cycles of all tiles on ``arch``."""
    accumulators = tile.rows * tile.vectors
    step = tile.step or _vector_step(tile, arch)
    compute = tile.depth * step
    compute += tile.spills * accumulators * _SPILL
    again = (tile.weight_uses - tile.weight_rounds) / bandwidth(tile.weight_reuse, arch)
    again += (tile.weight_rounds - 1) / bandwidth(tile.weight_far, arch)
    traffic = tile.weight_block * (1 / arch.l3_bandwidth + again) / tile.weight_uses
    traffic += tile.data_block / bandwidth(tile.data_reuse, arch)
    strided = 1 + _STRIDED / max(64.0, tile.out_run)
    traffic += tile.out_bytes * strided / bandwidth(tile.out_total / arch.cores, arch)
    overhead = tile.out_bytes / arch.simd_bytes * 2.0 + _TILE
    one = max(compute, traffic) + _OVERLAP * min(compute, traffic) + overhead
    shared = tile.parallel and arch.cores > 1
    total = tile.tiles * one * tile.imbalance / (arch.cores if shared else 1)
    return TileCost(compute, traffic, overhead, total + (LAUNCH if shared else 0.0))


def split_dot_step(rows: int, vectors: int, dot: DotIntrinsic, arch: CpuArch) -> float:
    """Return the cycles of one K step whose dot products take several instructions.

    Additions, shifts and masks run beside the multiplications, on half as many ports again.

    Args:
        rows: Data rows of the register tile.
        vectors: Vectors in a row of it.
        dot: The dot product.
        arch: The CPU.
    """
    accumulators, prepared = rows * vectors, dot.preparation
    multiply = dot.multiplies * accumulators
    others = dot.additions * accumulators
    others += prepared.weight * vectors + prepared.data * rows
    step = max(
        multiply / arch.fma_ports,
        (multiply + others) / (_VECTOR_PORTS * arch.fma_ports),
        (rows + vectors) / arch.load_ports,
    )
    needed = accumulators + prepared.registers * (vectors + 1) + prepared.constants + 1
    return step + max(0.0, _SPILL_STEP * (needed - arch.vector_registers))


def _vector_step(tile: TileNumbers, arch: CpuArch) -> float:
    """Return the cycles of one reduction step: the FMAs of a tile, and its L1 loads."""
    accumulators = tile.rows * tile.vectors
    multiply = accumulators / arch.fma_ports
    if tile.widens:
        widen = _WIDEN_WEIGHT * tile.vectors + _WIDEN_DATA * tile.rows
        multiply = max(multiply, (accumulators + widen) / _vector_ports(arch))
    broadcast = 1.0 if arch.broadcasts_in_fma else _BROADCAST
    load = (broadcast * tile.rows + tile.vectors) / arch.load_ports
    latency = arch.fma_latency * (1.0 if accumulators < arch.fma_ports * arch.fma_latency else 0.0)
    step = max(multiply, load, latency) + _LOADED * min(multiply, load)
    needed = accumulators + tile.vectors + 1
    if tile.depth <= _STRAIGHT:
        needed += tile.vectors + tile.rows // 2
    if needed > arch.vector_registers:  # register spills
        step += _SPILL_STEP * (needed - arch.vector_registers)
    step += _BRANCH / min(4, max(1, tile.inner))
    return step * _GUARDED if tile.guarded else step


def _vector_ports(arch: CpuArch) -> float:
    """Return the vector instructions that are no FMAs, or mixed with FMAs, issued per cycle."""
    return arch.fma_ports * (1.0 if arch.simd_bits >= _FEW_PORTS_BITS else _VECTOR_PORTS)


def bandwidth(working_set: float, arch: CpuArch) -> float:
    """Return the bandwidth of the smallest cache that holds ``working_set``.

    Args:
        working_set: Bytes per core.
        arch: The CPU.

    Returns:
        Bytes per cycle and core; DRAM bandwidth if no cache holds the working set.
    """
    levels = (
        (arch.l1_bytes, arch.l1_bandwidth),
        (arch.l2_bytes, arch.l2_bandwidth),
        (arch.l3_bytes / max(1, arch.cores), arch.l3_bandwidth),
    )
    for size, rate in levels:
        if working_set <= FILL * size:
            return rate
    return arch.dram_bandwidth


def stream_cycles(size: float, cores: int, arch: CpuArch) -> float:
    """Return the predicted cycles to stream ``size`` bytes once on ``cores`` cores."""
    return size / bandwidth(size / cores, arch) / cores + (LAUNCH if cores > 1 else 0.0)


def imbalance(tasks: int, cores: int) -> float:
    """Return the load imbalance: tasks of the busiest core over the average."""
    return math.ceil(tasks / cores) * cores / tasks
