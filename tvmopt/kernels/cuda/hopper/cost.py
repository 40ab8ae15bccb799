"""What a configuration of a Hopper kernel costs, in cycles.

Time is waves of tiles, each as many steps of the depth as there are, and a step takes as long as
the slowest of the tensor cores, shared memory and L2. Constants were fitted to kernels of an H200.
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

# Cycles from the launch until the first products, and from the last ones to the next launch; and
# those that thread blocks of a cluster need more, to begin and end together.
_FILL, _CLUSTER = 2010.0, 598.0
# How much longer than nominally the tensor cores take, because the clock falls when they are busy.
_POWER = 1.09
# Share of the time of reading shared memory that all else takes longer, for the power it draws.
_DRAW = 0.2122
# Share of its nominal time that reading shared memory takes.
_SHARED = 1.008
# Bytes a cycle of one multiprocessor from L2, when all of them read.
_L2 = 109.3
# The same where the operands are larger than L2: from kernels of 8192^3 and 16384^3, in which
# sharing the second operand did not help.
_FAR, _FAR_FROM = 74.9, 1.5
# Cycles in which the copy engine loads 128 bytes of a box of pixels; more where a line begins.
_PIXEL, _LINE = 2.253, 1.205
# How much slower L2 is where rows begin at every 64, 32 or 16 bytes, not at its lines of 128.
_PITCH_64, _PITCH_32, _PITCH_16 = 2.148, 1.788, 3.221
# The same of loads for several thread blocks.
_CAST_64, _CAST_32, _CAST_16 = 2.011, 3.6, 3.541
# Cycles in which a line of 128 bytes arrives in shared memory, as often as L2 is slower.
_ARRIVE, _ARRIVE_NORM = 0.4254, 1.114
# Share of the bandwidth of device memory, and how sharply the longer of computing and reading it
# decides (1: they add up). Fitted together: neither means much alone.
_STREAM, _NORM = 0.873, 3.287
# How fast device memory's bandwidth falls with the multiprocessors that read, as a power.
_ALONE = 0.15
# Cycles in which a warpgroup stores 64 x 256 16-bit numbers, by the copy engine and otherwise; and
# cycles between the last product of a tile and the first of the next besides.
_STORE, _STORE_STAGED, _TURN = 781.0, 2181.0, 627.9
# How much slower the copy engine stores rows that do not begin at lines of 128 bytes; and stores of
# which each waits until the one before has left its only buffer.
_STORE_ODD, _ONE_BUFFER = 1.561, 1.514
# Cycles in which a warp's instruction is issued, where all four schedulers are busy.
_ISSUE = 1.0 / 128.0
# Instructions for which a load counts, less those of one from shared memory.
_LOADED = 9.0
# Cycles in which a load arrives.
_LATENCY = 1280.0
# Cycles in which thread blocks wait for each other to add up, and of each number that one sends.
_MEET, _SENT = 735.6, 0.3292
# How sharply the slowest part of a step decides.
_SHARP = 7.825
# Cycles of a step besides.
_STEP = 8.040
# Cycles from the end of a tile to the first products of the next, which another thread block does.
_REFILL = 3368.0
# Cycles that a kernel before takes besides reading and writing.
_COPY = 1863.0

_Problem: TypeAlias = GemmProblem | ConvProblem | LineProblem


@dataclasses.dataclass(frozen=True)
class Cost:
    """Modelled cycles, and what they are made of.

    Attributes:
        cycles: All of them.
        compute: Of the tensor cores alone.
        l2: Of reading from L2 alone.
        dram: Of device memory alone.
        ending: Of storing.
    """

    cycles: float
    compute: float
    l2: float
    dram: float
    ending: float

    @property
    def facts(self) -> tuple[float, ...]:
        """The parts, for a re-ranker."""
        return self.compute, self.l2, self.dram, self.ending


def gemm_cost(problem: GemmProblem, config: Config, arch: CudaArch) -> Cost:
    """The cost of a matrix product."""
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
    """Bytes that a product reads and writes, each once."""
    p = problem
    rows = p.m * (p.batch if p.batch_a else 1) + p.n * (p.batch if p.batch_b else 1)
    return p.k * BYTES[p.dtype] * rows + p.elements * _written(p.out, problem)


def exceeds_l2(moved: float, arch: CudaArch) -> bool:
    """Whether so many bytes are too many to be read from L2 again."""
    return moved > _FAR_FROM * arch.l2_bytes


def conv_cost(
    problem: ConvProblem | LineProblem,
    config: Config,
    box: tuple[int, int, int],
    arch: CudaArch,
    copied: int = 0,
) -> Cost:
    """The cost of a convolution whose tiles are boxes of pixels.

    Args:
        problem: The convolution.
        config: How it is computed.
        box: Images, lines and columns of a box.
        arch: The GPU.
        copied: Bytes that are read and written before.
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


def _with_copies(cost: Cost, copied: int, arch: CudaArch) -> Cost:
    """``cost``, and that of a kernel before that reads and writes ``copied`` bytes."""
    if not copied:
        return cost
    more = _COPY + copied / arch.dram_bytes_cycle
    return dataclasses.replace(cost, cycles=cost.cycles + more, dram=cost.dram + more)


def _written(out: str, problem: _Problem) -> float:
    """Bytes of the output, and of inputs as large as it, for each element."""
    total = float(BYTES[out])
    if problem.epilogue is not None:
        for buffer, along in problem.epilogue.reads:
            if all(along):
                total += BYTES.get(str(buffer.dtype), 4)
    return total


def _cost(
    c: Config, arch: CudaArch, tiles: int, steps: int, pitches: tuple[int, int], moved: float,
    out: str, problem: _Problem, pixel: float = 0.0,
) -> Cost:  # fmt: skip
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
            # An input of the output's shape is loaded ahead.
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
    return Cost(total, waves * depth * compute, waves * depth * l2, dram, waves * ending)


def _slower(pitch: int, shared: bool) -> float:
    """How many times as long L2 takes where rows are ``pitch`` bytes apart.

    Args:
        pitch: The bytes.
        shared: Whether what is loaded goes to several thread blocks.
    """
    if pitch % 128 == 0:
        return 1.0
    if shared:
        return _CAST_64 if pitch % 64 == 0 else _CAST_32 if pitch % 32 == 0 else _CAST_16
    return _PITCH_64 if pitch % 64 == 0 else _PITCH_32 if pitch % 32 == 0 else _PITCH_16
