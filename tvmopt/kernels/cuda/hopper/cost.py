"""Cost model of the Hopper kernels, in cycles.

Time = waves x (K blocks x step + epilogue) + fill. A step takes as long as the slowest of tensor
cores, shared memory, L2, TMA and load latency (a p-norm of them). All constants are fitted to
measured kernels of one H200.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeAlias

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.hopper.config import DEPTH_BYTES, Config
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.few_channels_problem import LineProblem
from tvmopt.kernels.cuda.hopper.operand_copies import pitch_of
from tvmopt.kernels.cuda.hopper.problem import BYTES, GemmProblem, ceil_div

# Cycles from the launch to the first wgmma plus from the last one to the next launch; extra cycles
# of a cluster, whose blocks begin and end together.
_FILL, _CLUSTER = 2010.0, 598.0
# Tensor-core time relative to nominal: the clock falls under their power draw.
_POWER = 1.09
# Slowdown of a step by the power draw of shared-memory reads, as a share of their time.
_DRAW = 0.2122
# Time of shared-memory reads relative to nominal.
_SHARED = 1.008
# L2 bandwidth of one SM in bytes a cycle, while all SMs read.
_L2 = 109.3
# L2 bandwidth where the operands exceed L2 (bytes a cycle), and the multiple of the L2 size from
# which on it holds. From GEMMs of 8192^3 and 16384^3, where multicast of the second operand did not
# help.
_FAR, _FAR_FROM = 74.9, 1.5
# Cycles of a TMA load of 128 bytes of a pixel box; extra cycles at the start of an image row.
_PIXEL, _LINE = 2.253, 1.205
# L2 slowdown where rows are aligned to 64, 32 or 16 bytes only, not to lines of 128.
_PITCH_64, _PITCH_32, _PITCH_16 = 2.148, 1.788, 3.221
# The same slowdown of multicast loads.
_CAST_64, _CAST_32, _CAST_16 = 2.011, 3.6, 3.541
# Cycles until a 128-byte line arrives in shared memory; exponent of the L2 slowdown in it.
_ARRIVE, _ARRIVE_NORM = 0.4254, 1.114
# Share of DRAM bandwidth that is reached; exponent of the p-norm of compute and DRAM time (1 adds
# them). Fitted together: neither means much alone.
_STREAM, _NORM = 0.873, 3.287
# Exponent with which DRAM bandwidth falls with the share of busy SMs.
_ALONE = 0.15
# Cycles in which a warpgroup stores 64 x 256 16-bit elements, with TMA and with vector stores;
# extra cycles between the last wgmma of a tile and the first of the next.
_STORE, _STORE_STAGED, _TURN = 781.0, 2181.0, 627.9
# Slowdown of TMA stores whose rows are not aligned to 128 bytes; slowdown with a single epilogue
# buffer, where each store waits for the one before.
_STORE_ODD, _ONE_BUFFER = 1.561, 1.514
# Issue cycles of an instruction for one element, with all four schedulers busy.
_ISSUE = 1.0 / 128.0
# Instructions of an epilogue load, less those of a load from shared memory.
_LOADED = 9.0
# Latency of a load in cycles.
_LATENCY = 1280.0
# Cycles of the barriers of a cluster split-K; cycles for each partial sum that a block sends.
_MEET, _SENT = 735.6, 0.3292
# Exponent of the p-norm over the parts of a step.
_SHARP = 7.825
# Fixed cycles of a step.
_STEP = 8.040
# Cycles from the end of a tile to the first wgmma of the next, in another thread block.
_REFILL = 3368.0
# Fixed cycles of an extra kernel (packing or split-K reduction), besides its memory traffic.
_COPY = 1863.0

_Problem: TypeAlias = GemmProblem | ConvProblem | LineProblem


@dataclasses.dataclass(frozen=True)
class HopperCost:
    """Predicted cycles and their parts.

    Attributes:
        cycles: Total.
        compute: Tensor cores alone.
        l2: L2 reads alone.
        dram: DRAM traffic alone.
        ending: Epilogue.
    """

    cycles: float
    compute: float
    l2: float
    dram: float
    ending: float

    @property
    def facts(self) -> tuple[float, ...]:
        """Parts of the cost, as features of a learned re-ranker."""
        return self.compute, self.l2, self.dram, self.ending


def gemm_cost(problem: GemmProblem, config: Config, arch: CudaArch) -> HopperCost:
    """Return the cost of a GEMM."""
    p = problem
    size = BYTES[p.dtype]
    left, right = (p.n, p.m) if config.swap else (p.m, p.n)
    steps = ceil_div(p.k * size, DEPTH_BYTES)
    down = ceil_div(left, config.rows * config.cluster)
    across = ceil_div(right, config.columns * config.beside)
    widths = ((p.k if p.major[0] else p.m), (p.k if p.major[1] else p.n))
    first, second = (pitch_of(width, p.dtype) * size for width in widths)
    pitches = (second, first) if config.swap else (first, second)
    moved = moved_bytes(p)
    tiles = down * across * p.batch
    if config.apart:
        plain, parts = dataclasses.replace(p, epilogue=None), config.split
        cost = _cost(config, arch, tiles * parts, steps, pitches, moved, p.accumulator, plain)
        added = _COPY + (parts + 1) * p.elements * 4.0 / (2.0 * arch.dram_bytes_cycle)
        cost = dataclasses.replace(cost, cycles=cost.cycles + added, ending=cost.ending + added)
    else:
        cost = _cost(config, arch, tiles, steps, pitches, moved, p.out, problem)
    return _with_copies(cost, p.copied_bytes, arch)


def moved_bytes(problem: GemmProblem) -> float:
    """Return the DRAM bytes of a GEMM when each operand and the output move once."""
    p = problem
    rows = p.m * (p.batch if p.batch_a else 1) + p.n * (p.batch if p.batch_b else 1)
    return p.k * BYTES[p.dtype] * rows + p.elements * _written(p.out, problem)


def exceeds_l2(moved: float, arch: CudaArch) -> bool:
    """Whether ``moved`` bytes are too many for L2 to keep."""
    return moved > _FAR_FROM * arch.l2_bytes


def conv_cost(
    problem: ConvProblem | LineProblem,
    config: Config,
    box: tuple[int, int, int],
    arch: CudaArch,
    copied: int = 0,
) -> HopperCost:
    """Return the cost of an implicit-GEMM convolution whose tiles are pixel boxes.

    Args:
        problem: The convolution.
        config: The configuration.
        box: Images, rows and columns of a pixel box.
        arch: The GPU.
        copied: Bytes that a packing kernel reads and writes before.
    """
    p = problem
    size = BYTES[p.dtype]
    high, wide = p.out_size
    count = math.prod(ceil_div(e, b) for e, b in zip((p.images, high, wide), box, strict=True))
    down = ceil_div(count, config.consumers)
    across = ceil_div(p.filters, config.columns)
    if isinstance(p, ConvProblem):
        read = p.images * p.height * p.width * p.channels * size
        if p.kernel == (1, 1):
            read //= p.stride[0] * p.stride[1]
        read += p.kernel[0] * p.kernel[1] * p.channels * p.filters * size
        pitch = pitch_of(p.channels, p.dtype) * size
    else:
        read = p.images * p.height * p.width * size
        pitch = DEPTH_BYTES
    moved = read + p.images * high * wide * p.filters * _written(p.out, problem)
    pixel = _PIXEL + _LINE / box[2]
    pitches = (pitch, pitch)
    cost = _cost(config, arch, down * across, p.steps, pitches, moved, p.out, problem, pixel)
    return _with_copies(cost, copied, arch)


def _with_copies(cost: HopperCost, copied: int, arch: CudaArch) -> HopperCost:
    """Return ``cost`` plus that of a packing kernel that reads and writes ``copied`` bytes."""
    if not copied:
        return cost
    more = _COPY + copied / arch.dram_bytes_cycle
    return dataclasses.replace(cost, cycles=cost.cycles + more, dram=cost.dram + more)


def _written(out: str, problem: _Problem) -> float:
    """Return the bytes of an output element, plus those of residual inputs."""
    total = float(BYTES[out])
    if problem.epilogue is not None:
        for buffer, along in problem.epilogue.reads:
            if all(along):
                total += BYTES.get(str(buffer.dtype), 4)
    return total


def _cost(
    c: Config, arch: CudaArch, tiles: int, steps: int, pitches: tuple[int, int], moved: float,
    out: str, problem: _Problem, pixel: float = 0.0,
) -> HopperCost:  # fmt: skip
    """Return the cost of ``tiles`` output tiles of ``steps`` K blocks.

    Args:
        c: The configuration.
        arch: The GPU.
        tiles: Tiles, or clusters' tiles, times the K slices of split-K through workspace.
        steps: K blocks of the whole reduction.
        pitches: Row pitch of the left and of the right operand, in bytes.
        moved: Compulsory DRAM traffic in bytes.
        out: Dtype that is stored.
        problem: The problem.
        pixel: Cycles to load 128 bytes of a pixel; 0 for a GEMM.
    """
    shared = c.together
    waves = ceil_div(tiles, c.at_once)
    busy = min(1.0, tiles * shared / arch.sms)
    depth = ceil_div(steps, c.split)
    atoms = c.rows // 64
    instructions = 4 if isinstance(problem, GemmProblem) else problem.instructions
    compute = _POWER * instructions * atoms * c.columns / 2.0
    reads = _SHARED * instructions * atoms * (32.0 * c.columns + 2048.0) / arch.smem_bandwidth
    odd = _slower(pitches[0], c.beside > 1), _slower(pitches[1], c.cluster > 1)
    rows, columns = odd[0] * c.rows, odd[1] * c.columns
    l2 = DEPTH_BYTES * (rows / c.beside + columns / c.cluster) / _L2 * busy
    if exceeds_l2(moved, arch) and not pixel:
        l2 = max(l2, DEPTH_BYTES * (rows + columns) / _FAR * busy)
    arrive = _ARRIVE * (odd[0] ** _ARRIVE_NORM * c.rows + odd[1] ** _ARRIVE_NORM * c.columns)
    parts = (compute, reads, l2, arrive, pixel * c.rows, _LATENCY / (c.stages - 1))
    slowest = sum(part**_SHARP for part in parts) ** (1.0 / _SHARP)
    step = _STEP + slowest + _DRAW * reads
    area = c.rows * c.columns
    mine = 64.0 * c.atoms * c.columns / 16384.0
    store = _STORE_STAGED if c.staged else _STORE
    chunks = c.atoms if c.swap else ceil_div(c.columns * BYTES[out], 128 * c.ranks)
    if not c.staged and not c.swap:
        mine *= 128.0 * chunks * c.ranks / (c.columns * BYTES[out])
    if not c.staged and c.buffers == 1 and chunks > 1:
        store *= _ONE_BUFFER
    if not c.staged and isinstance(problem, GemmProblem) and problem.n * BYTES[out] % 128:
        store *= _STORE_ODD
    ending = store * mine * BYTES[out] / 2.0
    if problem.epilogue is not None:
        work = problem.epilogue.work
        if c.holds_all(out):
            # TMA prefetches a residual.
            work -= _LOADED * any(all(along) for _, along in problem.epilogue.reads)
        ending += _ISSUE * area * work
    if c.ranks > 1:
        ending = ending / c.ranks + _MEET + _SENT * area * (c.ranks - 1) / c.ranks
    ending += _TURN
    dram = moved / (arch.dram_bytes_cycle * _STREAM * busy**_ALONE)
    work = waves * (depth * step + ending) + (_CLUSTER if shared > 1 else 0.0)
    if not c.persistent:
        work += (waves - 1) * _REFILL
    total = (work**_NORM + dram**_NORM) ** (1.0 / _NORM) + _FILL
    return HopperCost(total, waves * depth * compute, waves * depth * l2, dram, waves * ending)


def _slower(pitch: int, shared: bool) -> float:
    """Return the L2 slowdown of rows ``pitch`` bytes apart.

    Args:
        pitch: Row pitch in bytes.
        shared: Whether the loads are multicast.
    """
    if pitch % 128 == 0:
        return 1.0
    if shared:
        return _CAST_64 if pitch % 64 == 0 else _CAST_32 if pitch % 32 == 0 else _CAST_16
    return _PITCH_64 if pitch % 64 == 0 else _PITCH_32 if pitch % 32 == 0 else _PITCH_16
