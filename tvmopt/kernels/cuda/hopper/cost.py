"""Cost model of the Hopper kernels, in cycles.

Time = waves x (K blocks x K-block cycles + epilogue) + launch. A K block takes as long as the
slowest of tensor cores, shared memory, L2, TMA and load latency (a p-norm of them).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypeAlias

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.few_channels_problem import FewChannelsProblem
from tvmopt.kernels.cuda.hopper.packing import pitch_of
from tvmopt.kernels.cuda.hopper.problem import BYTES, K_BLOCK_BYTES, GemmProblem, ceil_div
from tvmopt.kernels.cuda.hopper.split_float32 import PRODUCTS

_Problem: TypeAlias = GemmProblem | ConvProblem | FewChannelsProblem


@dataclasses.dataclass(frozen=True)
class HopperCosts:
    """Fitted constants of the cost model.

    Source: ``benchmarks.cuda_fit`` on sweeps of ``benchmarks.cuda_sweep`` on an H200, 1,800
    configurations of GEMMs, 2026-11-23 (``benchmarks/results/2026-11-23-cuda.md``); the launches on
    2026-11-28 (``benchmarks/results/2026-11-28-cuda-sweep.jsonl``). The
    L2 misses are from GEMMs of 8192^3 and 16384^3, where multicast of the second operand did not
    help. The GPU's descriptor has DRAM bandwidth, number of SMs and size of L2.

    Attributes:
        launch_cycles: From the launch to the first wgmma plus from the last one to the next launch.
        cluster_launch_cycles: Extra cycles of a cluster, whose blocks start and stop as one.
        wgmma_slowdown: Tensor-core time over nominal: the clock falls under their power draw.
        smem_power_share: Slowdown of a K block by the power draw of shared-memory reads, as a share
            of their time.
        smem_read_slowdown: Time of shared-memory reads over nominal.
        l2_bytes_per_cycle_per_sm: L2 bandwidth of one SM while all SMs read.
        l2_miss_bytes_per_cycle_per_sm: The same where the operands exceed L2.
        l2_miss_from_l2_sizes: Multiple of the L2 size from which on the operands exceed L2.
        pixel_load_cycles_per_128_bytes: TMA load of 128 bytes of a pixel box.
        image_row_load_cycles: Extra cycles at the start of an image row.
        pitch_64_slowdown: L2 slowdown of rows aligned to 64 bytes, not to lines of 128.
        pitch_32_slowdown: L2 slowdown of rows aligned to 32 bytes.
        pitch_16_slowdown: L2 slowdown of rows aligned to 16 bytes.
        multicast_pitch_64_slowdown: L2 slowdown of multicast loads of rows aligned to 64 bytes.
        multicast_pitch_32_slowdown: That slowdown for rows aligned to 32 bytes.
        multicast_pitch_16_slowdown: That slowdown for rows aligned to 16 bytes.
        arrival_cycles_per_line: Until a 128-byte line arrives in shared memory.
        arrival_slowdown_exponent: Exponent of the L2 slowdown in it.
        dram_share: Share of DRAM bandwidth that is reached.
        dram_norm_exponent: Exponent of the p-norm of compute and DRAM time; 1 adds them. Fitted
            together with ``dram_share``: neither means much alone.
        dram_busy_exponent: Exponent with which DRAM bandwidth falls with the share of busy SMs.
        tma_store_cycles: A warpgroup stores 64 x 256 16-bit elements with TMA.
        smem_store_cycles: The same through shared memory with vector stores.
        tile_switch_cycles: Between the last wgmma of a tile and the first of the next.
        tma_store_unaligned_slowdown: TMA stores of rows that are not aligned to 128 bytes.
        tma_store_one_buffer_slowdown: With a single epilogue buffer each store waits for the last.
        epilogue_cycles_per_instruction: One instruction for one element, all four schedulers busy.
        smem_load_instructions: Instructions that load an element of a prefetched residual from
            shared memory.
        pingpong_least_tile: Elements of a tile from which on ping-pong overlaps epilogues.
        load_latency_cycles: Latency of a load.
        cluster_split_k_cycles: Barriers of a cluster split-K.
        dsmem_cycles_per_partial_sum: One partial sum that a block sends.
        k_block_norm_exponent: Exponent of the p-norm over the parts of a K block.
        k_block_cycles: Fixed cycles of a K block.
        block_start_cycles: From the end of a tile to the first wgmma of the next, in another block.
        extra_kernel_cycles: A packing or reduction kernel, besides its DRAM traffic.
        raster_slowdown: Relative slowdown of each rasterisation order after the first.
        multicast_min_l2_over_compute: Ratio of L2 to tensor-core cycles from which on multicast is
            tried.
        multicast_max_cycles_ratio: Predicted cycles over those with a smaller cluster up to which a
            larger one is tried.
        swap_min_padding: Share of padding in 64-row tiles from which on A and B may be swapped.
        sum_cycles_per_element: Adding an element of a K block's sum (split float32 operands). Not
            fitted: four schedulers of 32 lanes, half of it under the other warpgroup's wgmma.
        box_cycles_per_pixel: A pixel of a box, loaded and multiplied.
        box_cycles_per_row: Extra cycles at the start of an image row of a box.
    """

    launch_cycles: float = 2330.0
    cluster_launch_cycles: float = 598.0
    wgmma_slowdown: float = 1.09
    smem_power_share: float = 0.2122
    smem_read_slowdown: float = 1.008
    l2_bytes_per_cycle_per_sm: float = 109.3
    l2_miss_bytes_per_cycle_per_sm: float = 74.9
    l2_miss_from_l2_sizes: float = 1.5
    pixel_load_cycles_per_128_bytes: float = 2.253
    image_row_load_cycles: float = 1.205
    pitch_64_slowdown: float = 2.148
    pitch_32_slowdown: float = 1.788
    pitch_16_slowdown: float = 3.221
    multicast_pitch_64_slowdown: float = 2.011
    multicast_pitch_32_slowdown: float = 3.6
    multicast_pitch_16_slowdown: float = 3.541
    arrival_cycles_per_line: float = 0.4254
    arrival_slowdown_exponent: float = 1.114
    dram_share: float = 0.873
    dram_norm_exponent: float = 3.287
    dram_busy_exponent: float = 0.15
    tma_store_cycles: float = 781.0
    smem_store_cycles: float = 2181.0
    tile_switch_cycles: float = 627.9
    tma_store_unaligned_slowdown: float = 1.561
    tma_store_one_buffer_slowdown: float = 1.514
    epilogue_cycles_per_instruction: float = 1.0 / 128.0
    smem_load_instructions: float = 1.0
    pingpong_least_tile: int = 64 * 128
    load_latency_cycles: float = 1280.0
    cluster_split_k_cycles: float = 735.6
    dsmem_cycles_per_partial_sum: float = 0.3292
    k_block_norm_exponent: float = 7.825
    k_block_cycles: float = 8.040
    block_start_cycles: float = 3368.0
    extra_kernel_cycles: float = 1863.0
    raster_slowdown: float = 0.01
    multicast_min_l2_over_compute: float = 0.5
    multicast_max_cycles_ratio: float = 1.03
    swap_min_padding: float = 0.06
    sum_cycles_per_element: float = 0.5 / 128.0
    box_cycles_per_pixel: float = 8.0
    box_cycles_per_row: float = 1.0

    def pitch_slowdown(self, pitch: int, multicast: bool) -> float:
        """Return the L2 slowdown of rows ``pitch`` bytes apart."""
        if pitch % 128 == 0:
            return 1.0
        if pitch % 64 == 0:
            return self.multicast_pitch_64_slowdown if multicast else self.pitch_64_slowdown
        if pitch % 32 == 0:
            return self.multicast_pitch_32_slowdown if multicast else self.pitch_32_slowdown
        return self.multicast_pitch_16_slowdown if multicast else self.pitch_16_slowdown


#: The constants of every Hopper GPU.
COSTS = HopperCosts()


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
        pixel_cycles: Cycles to load 128 bytes of a pixel; 0 for a GEMM.
    """

    problem: _Problem
    tiles: int
    k_blocks: int
    pitches: tuple[int, int]
    dram_bytes: float
    out: str
    pixel_cycles: float = 0.0


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
    moved = moved_bytes(p)
    tiles = down * across * p.batch
    if config.split_k_workspace:
        plain, slices = dataclasses.replace(p, epilogue=None), config.split_k
        tiled = _Tiled(plain, tiles * slices, p.k_blocks * p.group, pitches, moved, p.accumulator)
        cost = _cost(config, tiled, costs)
        traffic = (slices + 1) * p.elements * 4.0
        added = costs.extra_kernel_cycles + traffic / (2.0 * arch.dram_bytes_cycle)
        cost = dataclasses.replace(cost, cycles=cost.cycles + added, epilogue=cost.epilogue + added)
    else:
        cost = _cost(config, _Tiled(p, tiles, p.k_blocks * p.group, pitches, moved, p.out), costs)
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
    moved = read + p.images * high * wide * p.filters * _written(p.out, problem)
    pixel = costs.pixel_load_cycles_per_128_bytes + costs.image_row_load_cycles / box[2]
    tiled = _Tiled(p, tiles, p.k_blocks, (pitch, pitch), moved, p.out, pixel)
    return _with_packing(_cost(config, tiled, costs), packing_bytes, config.arch, costs)


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
    dram_rate = c.arch.dram_bytes_cycle * costs.dram_share * on_average**costs.dram_busy_exponent
    dram = tiled.dram_bytes / dram_rate
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
    # Of each wgmma, shared memory serves 32 bytes of each column and all of its 64 rows.
    smem_bytes = 32.0 * c.tile_n + 2048.0
    smem = (
        products * costs.smem_read_slowdown * k_steps * atoms * smem_bytes / c.arch.smem_bandwidth
    )
    left = costs.pitch_slowdown(tiled.pitches[0], c.cluster_n > 1)
    right = costs.pitch_slowdown(tiled.pitches[1], c.cluster_m > 1)
    rows, columns = left * c.parts * c.tile_m, right * c.parts * c.tile_n
    loaded = K_BLOCK_BYTES * (rows / c.cluster_n + columns / c.cluster_m)
    l2 = loaded / costs.l2_bytes_per_cycle_per_sm * busy
    if exceeds_l2(tiled.dram_bytes, c.arch, costs) and not tiled.pixel_cycles:
        missed = K_BLOCK_BYTES * (rows + columns)
        l2 = max(l2, missed / costs.l2_miss_bytes_per_cycle_per_sm * busy)
    exponent = costs.arrival_slowdown_exponent
    arrival = costs.arrival_cycles_per_line * (
        left**exponent * c.parts * c.tile_m + right**exponent * c.parts * c.tile_n
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
    if c.smem_store:
        store = costs.smem_store_cycles
    else:
        store = costs.tma_store_cycles
        buffers = c.m_atoms if c.swap_ab else ceil_div(c.tile_n * size, 128 * ranks)
        if not c.swap_ab:
            stored *= 128.0 * buffers * ranks / (c.tile_n * size)
        if c.epilogue_buffers == 1 and buffers > 1:
            store *= costs.tma_store_one_buffer_slowdown
        columns = problem.n if isinstance(problem, GemmProblem) else problem.filters
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
    return cycles / ranks + _exchange_cycles(c, costs) + costs.tile_switch_cycles


def _exchange_cycles(c: HopperConfig, costs: HopperCosts) -> float:
    """Return the cycles in which the blocks of a cluster split-K send and await partial sums."""
    ranks = c.cluster_split_k
    if ranks == 1:
        return 0.0
    sent = c.tile_m * c.tile_n * (ranks - 1) / ranks
    return costs.cluster_split_k_cycles + costs.dsmem_cycles_per_partial_sum * sent
