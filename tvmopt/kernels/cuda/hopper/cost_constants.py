"""Fitted constants of the cost model of the Hopper kernels, :mod:`.cost`."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class HopperCosts:
    """Fitted constants.

    Source: ``benchmarks.cuda_fit`` on sweeps of ``benchmarks.cuda_sweep`` on an H200, 1,800
    configurations of GEMMs, 2026-11-23 (``benchmarks/results/2026-11-23-cuda.md``); the launches,
    and the constants whose description has that date, on 2026-11-28
    (``benchmarks/results/2026-11-28-cuda-sweep.jsonl``). The L2 misses are from GEMMs of 8192^3 and
    16384^3, where multicast of the second operand did not help. The GPU's descriptor has DRAM
    bandwidth, number of SMs and size of L2.

    Attributes:
        launch_cycles: From the launch to the first wgmma plus from the last one to the next launch.
        cluster_launch_cycles: Extra cycles of a cluster, whose blocks start and stop as one.
        unaligned_2d_multicast_cycles: More of them where both operands are multicast and have rows
            aligned to 16 bytes only, in boxes of few rows (2026-11-28).
        mn_major_2d_multicast_cycles: More for each K block where both are MN-major and their boxes
            have few of the 64 lines (one GEMM, 2026-11-28).
        further_rows_cycles: More of the launch for each 64 rows of a tile after the first: nothing
            overlaps their first load and last store (one-wave GEMMs, second sweep of 2026-11-28).
        pingpong_turn_cycles: Of ping-pong for each tile of a thread block after the first (the same
            sweep).
        wgmma_slowdown: Tensor-core time over nominal: the clock falls under their power draw.
        lone_warpgroup_slowdown: Tensor-core time of a single consumer warpgroup, relative to that
            of several, whose wgmma fill the gaps between its K blocks (2026-11-28).
        smem_power_share: Slowdown of a K block by the power draw of shared-memory reads, as a share
            of their time.
        smem_read_slowdown: Time of shared-memory reads over nominal.
        l2_bytes_per_cycle_per_sm: L2 bandwidth of one SM while all SMs read.
        l2_miss_bytes_per_cycle_per_sm: The same where the operands exceed L2.
        l2_miss_from_l2_sizes: Multiple of the L2 size from which on the operands exceed L2.
        pixel_load_cycles_per_128_bytes: TMA load of 128 bytes of a pixel box.
        image_row_load_cycles: Extra cycles at the start of an image row.
        window_load_cycles_per_sector: TMA load of a 32-byte sector of a window of few channels,
            from three convolutions of 3 channels (H200, 2026-11-28).
        pitch_64_slowdown: L2 slowdown of rows aligned to 64 bytes, not to lines of 128.
        pitch_32_slowdown: L2 slowdown of rows aligned to 32 bytes (2026-11-28); their 128 bytes are
            in 1.75 lines on average.
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
        reread_slowdown: Relative slowdown of a stream as large as L2 that several clusters read; it
            falls with the square of the size (2026-11-28).
        workspace_rate: Bandwidth of the partial sums in a workspace over DRAM bandwidth; 2.0 fits a
            few MB, 0.9 fits 30 MB (2026-11-28).
        tma_store_cycles: A warpgroup stores 64 x 256 16-bit elements with TMA.
        tma_store_start_cycles: From the last wgmma to the first TMA store, over vector stores
            (one-wave GEMMs of the second sweep of 2026-11-28).
        smem_store_cycles: The same through shared memory with vector stores.
        lone_vector_cycles: More of it for each vector of a thread that loads and stores one at a
            time: an odd number of vectors (2026-11-28).
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
        raster_group_cycles: Start of a kernel whose raster groups have some of the rows of tiles,
            over row-major or column-major order (24 GEMMs of the second sweep of 2026-11-28).
        raster_longer_side_cycles: The same where that order follows the longer side of the grid.
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
    cluster_launch_cycles: float = 640.0
    further_rows_cycles: float = 250.0
    pingpong_turn_cycles: float = 250.0
    unaligned_2d_multicast_cycles: float = 400.0
    mn_major_2d_multicast_cycles: float = 25.0
    wgmma_slowdown: float = 1.09
    lone_warpgroup_slowdown: float = 1.05
    smem_power_share: float = 0.2122
    smem_read_slowdown: float = 1.008
    l2_bytes_per_cycle_per_sm: float = 109.3
    l2_miss_bytes_per_cycle_per_sm: float = 74.9
    l2_miss_from_l2_sizes: float = 1.5
    pixel_load_cycles_per_128_bytes: float = 2.253
    image_row_load_cycles: float = 1.205
    window_load_cycles_per_sector: float = 1.35
    pitch_64_slowdown: float = 2.148
    pitch_32_slowdown: float = 1.5
    pitch_16_slowdown: float = 3.221
    multicast_pitch_64_slowdown: float = 2.011
    multicast_pitch_32_slowdown: float = 3.6
    multicast_pitch_16_slowdown: float = 3.541
    arrival_cycles_per_line: float = 0.4254
    arrival_slowdown_exponent: float = 1.114
    dram_share: float = 0.873
    dram_norm_exponent: float = 3.287
    dram_busy_exponent: float = 0.15
    reread_slowdown: float = 0.7
    workspace_rate: float = 1.6
    tma_store_cycles: float = 781.0
    tma_store_start_cycles: float = 150.0
    smem_store_cycles: float = 2181.0
    lone_vector_cycles: float = 60.0
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
    raster_group_cycles: float = 200.0
    raster_longer_side_cycles: float = 100.0
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
