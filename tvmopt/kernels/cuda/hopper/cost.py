"""Cost model of the Hopper kernels, in cycles.

Time = waves x (K blocks x K-block cycles + epilogue) + launch. A K block takes as long as the
slowest of tensor cores, shared memory, L2, TMA and load latency (a p-norm of them).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeAlias

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.hopper.config import HopperConfig, spilled_rounds
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.cost_constants import COSTS, HopperCosts
from tvmopt.kernels.cuda.hopper.few_channels_problem import FewChannelsProblem
from tvmopt.kernels.cuda.hopper.packing import pitch_of
from tvmopt.kernels.cuda.hopper.problem import BYTES, K_BLOCK_BYTES, GemmProblem, ceil_div
from tvmopt.kernels.cuda.hopper.split_float32 import PRODUCTS

_Problem: TypeAlias = GemmProblem | ConvProblem | FewChannelsProblem


@dataclasses.dataclass(frozen=True)
class HopperCost:
    """Predicted cycles and their parts.

    Attributes:
        cycles: Total.
        compute: Tensor cores alone.
        l2: L2 reads alone.
        dram: DRAM traffic alone.
        epilogue: Epilogue.
    """

    cycles: float
    compute: float
    l2: float
    dram: float
    epilogue: float

    @property
    def facts(self) -> tuple[float, ...]:
        """Parts of the cost, as features of a learned re-ranker."""
        return self.compute, self.l2, self.dram, self.epilogue


@dataclasses.dataclass(frozen=True)
class _Tiled:
    """A tiled problem, as the cost model sees it.

    Attributes:
        problem: The problem.
        tiles: Tiles, or clusters' tiles, times the K slices of split-K through workspace.
        k_blocks: K blocks of the whole reduction.
        pitches: Row pitch of the left and of the right operand, in bytes.
        dram_bytes: Compulsory DRAM traffic.
        out: Dtype that is stored.
        pixel_cycles: Cycles to load a K block of a pixel; 0 for a GEMM.
        readers: Clusters that read a part of the larger operand.
    """

    problem: _Problem
    tiles: int
    k_blocks: int
    pitches: tuple[int, int]
    dram_bytes: float
    out: str
    pixel_cycles: float = 0.0
    readers: int = 1


def gemm_cost(problem: GemmProblem, config: HopperConfig, costs: HopperCosts = COSTS) -> HopperCost:
    """Return the cost of a GEMM."""
    p, arch = problem, config.arch
    size = BYTES[p.dtype]
    left, right = (p.n, p.m) if config.swap_ab else (p.m, p.n)
    down = ceil_div(left, config.tile_m * config.cluster_m)
    across = ceil_div(right, config.tile_n * config.cluster_n)
    k = p.row_elements
    widths = ((k if p.k_major[0] else p.m), (k if p.k_major[1] else p.n))
    first, second = (pitch_of(width, p.dtype) * size for width in widths)
    pitches = (second, first) if config.swap_ab else (first, second)
    if not config.k_major(p)[1] and right > config.tile_n:
        # The rows of an MN-major tile begin with the tile, not with the matrix.
        pitches = pitches[0], math.gcd(pitches[1], config.tile_n * size)
    moved = moved_bytes(p)
    tiles = down * across * p.batch
    readers = across if left >= right else down
    if config.split_k_workspace:
        plain, slices = dataclasses.replace(p, epilogue=None), config.split_k
        tiled = _Tiled(
            plain,
            tiles * slices,
            p.k_blocks * p.group,
            pitches,
            moved,
            p.accumulator,
            readers=readers,
        )
        cost = _cost(config, tiled, costs)
        traffic = (slices + 1) * p.elements * 4.0
        added = costs.extra_kernel_cycles + traffic / (costs.workspace_rate * arch.dram_bytes_cycle)
        cost = dataclasses.replace(cost, cycles=cost.cycles + added, epilogue=cost.epilogue + added)
    else:
        tiled = _Tiled(p, tiles, p.k_blocks * p.group, pitches, moved, p.out, readers=readers)
        cost = _cost(config, tiled, costs)
    return _with_packing(cost, p.packing_bytes, arch, costs)


def moved_bytes(problem: GemmProblem) -> float:
    """Return the DRAM bytes of a GEMM when each operand and the output move once."""
    p = problem
    rows = p.m * (p.batch if p.batch_a else 1) + p.n * (p.batch if p.batch_b else 1)
    return p.row_elements * BYTES[p.dtype] * rows + p.elements * _written(p.out, problem)


def exceeds_l2(moved: float, arch: CudaArch, costs: HopperCosts = COSTS) -> bool:
    """Whether ``moved`` bytes are too many for L2 to keep."""
    return moved > costs.l2_miss_from_l2_sizes * arch.l2_bytes


def conv_cost(
    problem: ConvProblem | FewChannelsProblem,
    config: HopperConfig,
    box: tuple[int, int, int],
    packing_bytes: int = 0,
    costs: HopperCosts = COSTS,
) -> HopperCost:
    """Return the cost of an implicit-GEMM convolution whose tiles are pixel boxes.

    Args:
        problem: The convolution.
        config: The configuration.
        box: Images, rows and columns of a pixel box.
        packing_bytes: Bytes that a packing kernel reads and writes before.
        costs: Constants of the model.
    """
    p = problem
    size = BYTES[p.dtype]
    high, wide = p.out_size
    count = math.prod(ceil_div(e, b) for e, b in zip((p.images, high, wide), box, strict=True))
    tiles = ceil_div(count, config.tile_warpgroups) * ceil_div(p.filters, config.tile_n)
    if isinstance(p, ConvProblem):
        read = p.images * p.height * p.width * p.channels * size
        if p.kernel == (1, 1):
            read //= p.stride[0] * p.stride[1]
        read += p.kernel[0] * p.kernel[1] * p.channels * p.filters * size
        pitch = pitch_of(p.channels, p.dtype) * size
    else:
        read = p.images * p.height * p.width * size
        pitch = K_BLOCK_BYTES
    pixel = costs.image_row_load_cycles / box[2]
    if isinstance(p, ConvProblem):
        pixel += costs.pixel_load_cycles_per_128_bytes
    else:
        pixel += costs.window_load_cycles_per_sector * _sectors(p, config.arch)
    moved = read + p.images * high * wide * p.filters * _written(p.out, problem)
    tiled = _Tiled(p, tiles, p.k_blocks, (pitch, pitch), moved, p.out, pixel)
    return _with_packing(_cost(config, tiled, costs), packing_bytes, config.arch, costs)


def _sectors(problem: FewChannelsProblem, arch: CudaArch) -> float:
    """Return the mean number of L2 sectors that the window rows of a pixel touch in a K block.

    Windows begin at multiples of 16 bytes, so that half of them may begin within a sector.
    """
    size = BYTES[problem.dtype]
    line, step = problem.window * size, problem.column_stride * size
    straddling = 1.0 - math.gcd(step, arch.sector) / arch.sector
    return problem.loaded_rows * (line / arch.sector + straddling)


def _with_packing(
    cost: HopperCost, packing_bytes: int, arch: CudaArch, costs: HopperCosts
) -> HopperCost:
    """Return ``cost`` plus that of a packing kernel that moves ``packing_bytes``."""
    if not packing_bytes:
        return cost
    more = costs.extra_kernel_cycles + packing_bytes / arch.dram_bytes_cycle
    return dataclasses.replace(cost, cycles=cost.cycles + more, dram=cost.dram + more)


def _written(out: str, problem: _Problem) -> float:
    """Return the bytes of an output element plus the bytes of its residual inputs."""
    total = float(BYTES[out])
    if problem.epilogue is not None:
        for buffer, along in problem.epilogue.reads:
            if all(along):
                total += BYTES.get(str(buffer.dtype), 4)
    return total


def _cost(c: HopperConfig, tiled: _Tiled, costs: HopperCosts) -> HopperCost:
    """Return the cost of all output tiles, without packing and split-K reduction kernels."""
    waves = ceil_div(tiled.tiles, c.resident_clusters)
    k_blocks = ceil_div(tiled.k_blocks, c.split_k)
    busy = min(1.0, tiled.tiles * c.cluster_size / c.arch.sms)
    on_average = tiled.tiles * c.cluster_size / (waves * c.arch.sms)
    k_block, compute, l2 = _k_block_cycles(c, tiled, busy, costs)
    epilogue = _epilogue_cycles(c, tiled, costs)
    main_loop = k_blocks * k_block
    sms = waves * (main_loop + epilogue)
    if c.pingpong and main_loop >= epilogue and _pingpong_pays(c, tiled, costs):
        sms = _overlapped(c, waves, main_loop, epilogue)
    sms += costs.cluster_launch_cycles if c.cluster_size > 1 else 0.0
    sms += costs.further_rows_cycles * (c.tile_m // 64 - 1)
    if c.pingpong:
        sms += costs.pingpong_turn_cycles * (waves - 1)
    if min(c.cluster_m, c.cluster_n) > 1 and all(pitch % 32 for pitch in tiled.pitches):
        sms += costs.unaligned_2d_multicast_cycles
        if isinstance(tiled.problem, GemmProblem) and not any(tiled.problem.k_major):
            sms += costs.mn_major_2d_multicast_cycles * k_blocks * waves
    dram_rate = c.arch.dram_bytes_cycle * costs.dram_share * on_average**costs.dram_busy_exponent
    dram = tiled.dram_bytes / dram_rate * _reread_slowdown(c, tiled, costs)
    if not c.persistent:
        # Between the last load of a block and the first of the next on its SM, DRAM is idle too.
        sms += (waves - 1) * costs.block_start_cycles
        dram += (waves - 1) * costs.block_start_cycles
    norm = costs.dram_norm_exponent
    # DRAM has nothing to load while the blocks of a cluster exchange their last partial sums. L2
    # keeps smaller operands from launch to launch.
    streams = tiled.dram_bytes > c.arch.l2_bytes
    exchange = _exchange_cycles(c, costs) if streams else 0.0
    total = ((sms - exchange) ** norm + dram**norm) ** (1.0 / norm) + exchange + costs.launch_cycles
    return HopperCost(
        total, waves * k_blocks * compute, waves * k_blocks * l2, dram, waves * epilogue
    )


def _reread_slowdown(c: HopperConfig, tiled: _Tiled, costs: HopperCosts) -> float:
    """Return the slowdown of the larger operand's stream where several clusters read it.

    L2 has two partitions, and a line that SMs of both read occupies both: the nearer the operands
    come to the size of L2, the more of them it loses between launches and readers.
    """
    share = tiled.dram_bytes / c.arch.l2_bytes
    if tiled.readers == 1 or share > 1.0:
        return 1.0
    return 1.0 + costs.reread_slowdown * share**2


def _pingpong_pays(c: HopperConfig, tiled: _Tiled, costs: HopperCosts) -> bool:
    """Whether ping-pong was seen to overlap epilogues: a GEMM of large tiles without a residual.

    With residuals, small tiles, pixels, or a main loop shorter than the epilogue, 13 kernels took 0
    to 25 % longer with it than without (H100, 2026-11-28).
    """
    epilogue = tiled.problem.epilogue
    residual = epilogue is not None and any(all(along) for _, along in epilogue.reads)
    small = c.tile_m * c.tile_n < costs.pingpong_least_tile
    return not (residual or small or tiled.pixel_cycles)


def _overlapped(c: HopperConfig, tiles: int, main_loop: float, epilogue: float) -> float:
    """Return the cycles of the tiles of a thread block with ping-pong.

    The main loop of one warpgroup overlaps the epilogue of the other. The last epilogue overlaps
    nothing.
    """
    each = max(main_loop, (main_loop + epilogue) / c.consumer_warpgroups)
    return main_loop + epilogue + (tiles - 1) * each


def _k_block_cycles(
    c: HopperConfig, tiled: _Tiled, busy: float, costs: HopperCosts
) -> tuple[float, float, float]:
    """Return the cycles of one K block of a tile: in all, of the tensor cores, and of L2.

    Args:
        c: The configuration.
        tiled: The tiled problem.
        busy: Share of the SMs that have a tile.
        costs: Constants of the model.
    """
    problem = tiled.problem
    k_steps = 4 if isinstance(problem, GemmProblem) else problem.k_steps
    atoms = c.tile_m // 64
    products = len(PRODUCTS) if c.parts > 1 else 1
    compute = products * costs.wgmma_slowdown * k_steps * atoms * c.tile_n / 2.0
    if c.consumer_warpgroups == 1:
        compute *= costs.lone_warpgroup_slowdown
    # Of each wgmma, shared memory serves 32 bytes of each column and all of its 64 rows.
    smem_bytes = 32.0 * c.tile_n + 2048.0
    smem = (
        products * costs.smem_read_slowdown * k_steps * atoms * smem_bytes / c.arch.smem_bandwidth
    )
    left = costs.pitch_slowdown(tiled.pitches[0], c.cluster_n > 1)
    right = costs.pitch_slowdown(tiled.pitches[1], c.cluster_m > 1)
    rows, columns = left * c.parts * c.tile_m, right * c.parts * c.loaded_n
    loaded = K_BLOCK_BYTES * (rows / c.cluster_n + columns / c.cluster_m)
    l2 = loaded / costs.l2_bytes_per_cycle_per_sm * busy
    if exceeds_l2(tiled.dram_bytes, c.arch, costs) and not tiled.pixel_cycles:
        missed = K_BLOCK_BYTES * (rows + columns)
        l2 = max(l2, missed / costs.l2_miss_bytes_per_cycle_per_sm * busy)
    exponent = costs.arrival_slowdown_exponent
    arrival = costs.arrival_cycles_per_line * (
        left**exponent * c.parts * c.tile_m + right**exponent * c.parts * c.loaded_n
    )
    latency = costs.load_latency_cycles / (c.stages - 1)
    parts = (compute, smem, l2, arrival, tiled.pixel_cycles * c.tile_m, latency)
    norm = costs.k_block_norm_exponent
    slowest = sum(part**norm for part in parts) ** (1.0 / norm)
    if c.parts > 1:
        slowest += costs.sum_cycles_per_element * c.tile_m * c.tile_n / c.block_sums
    return costs.k_block_cycles + slowest + costs.smem_power_share * smem, compute, l2


def _epilogue_cycles(c: HopperConfig, tiled: _Tiled, costs: HopperCosts) -> float:
    """Return the cycles between the last wgmma of a tile and the first of the next."""
    problem, size = tiled.problem, BYTES[tiled.out]
    area, ranks = c.tile_m * c.tile_n, c.cluster_split_k
    # Of a warpgroup, in units of 64 x 256.
    stored = 64.0 * c.m_atoms * c.tile_n / 16384.0
    columns = problem.n if isinstance(problem, GemmProblem) else problem.filters
    exposed = 0.0
    if c.smem_store:
        store = costs.smem_store_cycles
        vectors = c.tile_m * c.block_columns // math.gcd(columns, 4)
        rounds, in_flight = spilled_rounds(vectors, 128 * c.consumer_warpgroups)
        exposed = costs.lone_vector_cycles * rounds if in_flight == 1 else 0.0
    else:
        store = costs.tma_store_cycles
        exposed = costs.tma_store_start_cycles
        buffers = c.m_atoms if c.swap_ab else ceil_div(c.tile_n * size, 128 * ranks)
        if not c.swap_ab:
            stored *= 128.0 * buffers * ranks / (c.tile_n * size)
        if c.epilogue_buffers == 1 and buffers > 1:
            store *= costs.tma_store_one_buffer_slowdown
        if columns * size % 128:
            store *= costs.tma_store_unaligned_slowdown
    cycles = store * stored * size / 2.0
    if problem.epilogue is not None:
        narrowed = problem.epilogue.narrowed
        work = narrowed.work
        if c.buffers_hold_tile(tiled.out):
            # As in residual_of: TMA loads elements as wide as the output's.
            residuals = [
                buffer
                for buffer, along in narrowed.reads
                if all(along) and BYTES.get(str(buffer.dtype)) == size
            ]
            if residuals:
                work -= narrowed.load_work(residuals[0]) - costs.smem_load_instructions
        cycles += costs.epilogue_cycles_per_instruction * area * work
    return cycles / ranks + exposed + _exchange_cycles(c, costs) + costs.tile_switch_cycles


def _exchange_cycles(c: HopperConfig, costs: HopperCosts) -> float:
    """Return the cycles in which the blocks of a cluster split-K send and await partial sums."""
    ranks = c.cluster_split_k
    if ranks == 1:
        return 0.0
    sent = c.tile_m * c.tile_n * (ranks - 1) / ranks
    return costs.cluster_split_k_cycles + costs.dsmem_cycles_per_partial_sum * sent
