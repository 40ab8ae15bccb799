"""What a configuration of a Hopper kernel costs, in cycles.

Time is waves of tiles, each as many steps of the depth as there are, and a step takes as long as
the slowest of the tensor cores, shared memory and L2. Constants were fitted to kernels of an H200.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeAlias

from tvmopt.arch.cuda import CudaArch

from .config import DEPTH_BYTES, Config
from .conv import ConvProblem
from .lines import LineProblem
from .problem import BYTES, GemmProblem, ceil_div

# Cycles from the launch until the first products, and from the last ones to the next launch.
_FILL = 5500.0
# How much longer than nominally the tensor cores take, because the clock falls when they are busy.
_POWER = 1.15
# Share of its nominal time that reading shared memory takes.
_SHARED = 0.8
# Bytes a cycle of one multiprocessor from L2, when all of them read.
_L2 = 64.0
# How much slower L2 is where rows do not begin at its lines of 128 bytes.
_ODD_PITCH = 1.8
# Share of the bandwidth of device memory that a stream of loads reaches.
_STREAM = 0.875
# Cycles to store a tile of 128 x 256 16-bit numbers, by the copy engine and otherwise; and cycles
# between the last product of a tile and the first of the next besides.
_STORE, _STORE_STAGED, _TURN = 500.0, 2500.0, 900.0
# Cycles in which a load arrives, and that blocks take to wait for each other.
_LATENCY, _CLUSTER = 900.0, 1200.0
# More work to finish one element for each input that is read.
_PER_INPUT = 0.35
# Share of the lesser of computing and reading device memory that the other does not hide.
_OVERLAP = 0.15
# Multiprocessors that can form clusters together, of 132.
_NEIGHBOURS = (18, 18, 18, 18, 16, 16, 14, 14)


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
    across = ceil_div(right, config.columns)
    pitches = ((p.m if p.trans_a else p.k), (p.k if p.trans_b else p.n))
    odd = any(pitch * size % 128 for pitch in pitches)
    moved = p.k * size * (
        p.m * (p.batch if p.batch_a else 1) + p.n * (p.batch if p.batch_b else 1)
    ) + p.batch * p.m * p.n * _written(p.out, problem)
    return _cost(config, arch, down * across * p.batch, steps, odd, moved, p.out, problem)


def conv_cost(
    problem: ConvProblem | LineProblem,
    config: Config,
    box: tuple[int, int, int],
    arch: CudaArch,
) -> Cost:
    """The cost of a convolution whose tiles are boxes of pixels."""
    p = problem
    size = BYTES[p.dtype]
    high, wide = p.out_size
    count = math.prod(
        ceil_div(e, b) for e, b in zip((p.images, high, wide), box, strict=True)
    )
    down = ceil_div(count, config.consumers)
    across = ceil_div(p.filters, config.columns)
    if isinstance(p, ConvProblem):
        read = p.images * p.height * p.width * p.channels * size
        if p.kernel == (1, 1):
            read //= p.stride[0] * p.stride[1]
        read += p.kernel[0] * p.kernel[1] * p.channels * p.filters * size
        odd = bool(p.channels * size % 128)
    else:
        read = p.images * p.height * p.width * size
        odd = False
    moved = read + p.images * high * wide * p.filters * _written(p.out, problem)
    return _cost(config, arch, down * across, p.steps, odd, moved, p.out, problem)


def _written(out: str, problem: _Problem) -> float:
    """Bytes of the output, and of inputs as large as it, for each element."""
    total = float(BYTES[out])
    if problem.epilogue is not None:
        for buffer, along in problem.epilogue.reads:
            if all(along):
                total += BYTES.get(str(buffer.dtype), 4)
    return total


def _cost(
    c: Config, arch: CudaArch, tiles: int, steps: int, odd: bool, moved: float, out: str,
    problem: _Problem,
) -> Cost:  # fmt: skip
    shared = max(c.cluster, c.split)
    at_once = clusters(arch, shared) * c.resident
    waves = ceil_div(tiles, at_once)
    busy = min(1.0, tiles * shared / arch.sms)
    depth = ceil_div(steps, c.split)
    atoms = c.rows // 64
    compute = _POWER * 4.0 * atoms * c.columns / 2.0
    reads = _SHARED * 4.0 * atoms * (32.0 * c.columns + 2048.0) / arch.smem_bandwidth
    l2 = DEPTH_BYTES * (c.rows + c.columns / c.cluster) / _L2 * busy
    if odd:
        l2 *= _ODD_PITCH
    step = max(c.resident * max(compute, reads, l2), _LATENCY / (c.stages - 1))
    area = c.rows * c.columns / 32768.0
    ending = (_STORE_STAGED if c.staged else _STORE) * area * (_written(out, problem) / 2.0)
    if problem.epilogue is not None:
        ending *= 1.0 + _PER_INPUT * len(problem.epilogue.inputs)
    if c.split > 1:
        ending = ending / c.split + _CLUSTER + ending * 0.25
    ending += _TURN
    dram = moved / (arch.dram_bytes_cycle * _STREAM)
    # Of blocks that share a multiprocessor one multiplies while another stores.
    busiest = depth * step + (ending if c.resident == 1 else 0.0)
    work = waves * max(busiest, ending)
    total = max(work, dram) + _OVERLAP * min(work, dram) + _FILL
    return Cost(total, waves * depth * compute, waves * depth * l2, dram, waves * ending)


def clusters(arch: CudaArch, size: int) -> int:
    """Clusters of ``size`` thread blocks that run at once, one block a multiprocessor."""
    if size == 1:
        return arch.sms
    share = arch.sms / sum(_NEIGHBOURS)
    return max(1, int(share * sum(n // size for n in _NEIGHBOURS)))
