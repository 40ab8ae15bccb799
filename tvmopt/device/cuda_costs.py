"""CudaCosts: fitted parameters of the cost models of CUDA kernels, apart from wgmma kernels."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class CudaCosts:
    """Fitted parameters of a GPU's cost models; the defaults fit an H200.

    Fits, by the median of repeated launches: SIMT and mma.sync GEMMs on 2026-11-22 and 2026-11-23,
    row reductions, elementwise functions and copies on 2026-11-23, row reductions of several passes
    again on 2026-11-28. ``benchmarks/cuda_fit.py`` fits a parameter again;
    ``benchmarks/results/2026-11-23-cuda.md`` shows kernels that this ranks.
    A parameter whose description says "estimated" was not fitted.

    Attributes:
        launch_cycles: From a launch to the first instruction, plus from the last to the next
            launch.
        small_block_launch_cycles: Between two launches of blocks of one or two warps on an SM.
        dram_latency_cycles: Latency of DRAM under load.
        l2_latency_cycles: Latency of L2.
        async_copy_latency_cycles: Latency of cp.async; the stages in flight must cover it.
        stream_bandwidth_share: Share of DRAM and L2 bandwidth that a stream reaches.
        sm_l2_bytes_per_cycle: L2 bandwidth of one SM.
        sm_tile_bytes_per_cycle: L2 bandwidth of one SM that loads tiles of a GEMM.
        l2_resident_share: Share of L2 that holds data for SMs everywhere.
        l1_resident_share: Share of L1 in which rows stay until they are read again.
        issue_slot_share: Share of the issue slots that is used at best.
        lone_warp_instruction_cycles: Between two instructions of a warp, without contention.
        exposed_share: Share of the shorter of memory and issue time that the longer does not hide.
        single_wait_exposed_share: More of it where threads wait only once.
        wave_tail_share: Share of a wave's wait that later waves do not hide.
        shuffle_instructions: Instructions of one step of a warp shuffle reduction.
        shuffle_cycles: Cycles of that step.
        cross_warp_cycles: Reduction over several warps: two barriers and shared memory.
        overlap_exponent: Exponent of the norm that adds up overlapping resources of GEMVs and row
            reductions; 2.9 to 3.2 in the fits of 2026-11-28 on an H200.
        row_launch_cycles: Between two launches of a row reduction, besides its blocks. All ``row_``
            parameters: H200, 2026-11-28, fit to six rows of a sweep and nine older ones.
        row_block_cycles: Launch of a further block on an SM.
        row_instructions: Instructions of a thread of a row reduction besides its elements.
        row_issue_slots: Issue slots of an instruction of a warp, as estimated from the TIR.
        row_instruction_cycles: Cycles of such an instruction of a warp alone.
        row_line_cycles: Of an SM for a 128-byte line that a warp touches.
        row_l2_wait_cycles: Exposed cycles of a dependent load from L2.
        row_dram_wait_cycles: The same from DRAM.
        row_l2_bandwidth_ratio: L2 bandwidth relative to ``l2_gbs``.
        row_shuffle_cycles: Cycles of a step of a warp shuffle reduction.
        row_cross_warp_cycles: Reduction over several warps, besides.
        row_guard_cycles: Of a later pass over vectors that were loaded under a condition.
        reread_cycles: Until data that was read before arrives again.
        reread_line_cycles: Of an SM for a 128-byte line of a row that a later pass reads again.
        split_line_share: Share of reread_line_cycles for each further line that a warp touches
            because its threads are in several rows.
        phase_stall_warps: Warps of a scheduler that double the issue time of dependent passes, by
            stalls that more warps hide.
        partial_sector_lines: 128-byte lines that a store of less than an L2 sector costs.
        reduction_instructions: Instructions of a thread of a reduction besides its elements.
        block_reduction_instructions: Instructions of a thread of a block reduction, besides
            (estimated).
        elementwise_instructions: Instructions of a thread of an elementwise function, besides.
        transform_instructions: Instructions of a thread of a Winograd transform, besides
            (estimated).
        load_instructions: Instructions of a load with its index (estimated).
        window_load_instructions: Instructions of a load in a window (estimated).
        transform_access_instructions: Instructions of a load or store of a Winograd transform,
            with address and bounds check (estimated).
        unpack_instructions: Instructions to unpack an element of a packed weight.
        accumulator_time_share: Relative memory time that each further column of a thread adds.
        vector_dram_share: Relative DRAM time that a doubling of a thread's bytes beyond 16 adds.
        small_block_dram_share: Relative DRAM time that blocks of fewer than the most threads add.
        copy_step_cycles: Cycles of a small copy for each doubling of the block, and for each vector
            more or less than two.
        copy_time_ratio: Time of a plain copy relative to another kernel.
        bank_conflict_degree: Mean bank-conflict degree of a transpose's accesses.
        block_reduction_time_ratio: Safety factor on the model of block reductions (estimated).
        fallback_time_ratio: Time of the fallback relative to a kernel that fits (estimated).
        gemv_launch_cycles: Between two launches of a GEMV, besides its blocks. All ``gemv_``
            parameters: H200, 2026-11-28, fit to eight rows of a sweep and ten older ones.
        gemv_block_cycles: Launch of a further block on an SM.
        gemv_next_block_cycles: From the end of a block to the first load of the next.
        gemv_instructions: Instructions of a thread of a GEMV besides its elements.
        gemv_load_instructions: Instructions of a step for each vector load.
        gemv_step_instructions: Instructions of a step, besides.
        gemv_guard_instructions: Instructions of a step that some threads skip.
        gemv_wide_guard_instructions: The same with loads of 16 bytes.
        gemv_row_guard_instructions: Instructions of a step and row where some rows are skipped.
        gemv_convert_half_slots: Issue slots to convert a float16 or bfloat16.
        gemv_convert_byte_slots: Issue slots to extract an int8.
        gemv_instruction_cycles: Between two instructions of a warp alone: floating-point
            accumulation is a dependence chain.
        gemv_integer_cycles: Exposed cycles of an integer instruction; nvcc reorders its additions.
        gemv_unrolled_steps: Steps that nvcc loads ahead at least.
        gemv_l2_wait_cycles: Exposed cycles of a dependent load from L2.
        gemv_dram_wait_cycles: The same from DRAM.
        gemv_l1_bytes_per_cycle: L1 bandwidth of an SM (data sheet; the fit gave 109 to 126).
        gemv_shuffle_instructions: Instructions of a step of the warp shuffle reduction (estimated).
        gemv_shuffle_cycles: Exposed cycles of such a step.
        gemv_cross_warp_cycles: Reduction over several warps.
        gemv_l2_bandwidth_ratio: L2 bandwidth relative to ``l2_gbs``.
        gemv_wave_tail_share: Relative memory time that a single wave adds, as SMs differ in speed.
        gemv_l2_resident_share: Share of L2 up to which the operands of a GEMV are read from it:
            weights of 50 MB were, at more than DRAM's bandwidth; one of 67 MB was not.
        gemv_time_ratio: Measured over predicted cycles of int4 GEMV kernels beside wgmma kernels.
        int4_tile_instructions: Instructions of a warp for 16 rows of a stage of the int4 GEMV.
        int4_fine_scale_instructions: More of them for scales of less than half a stage.
        int4_stage_instructions: Instructions of a stage, besides.
        int4_issue_slot_share: Share of the issue slots that is used at best.
        int4_load_latency_cycles: Latency of a load.
        int4_start_cycles: Until the first MMA of a block.
        int4_end_cycles: After its last MMA.
        packing_cycles: Least cycles from the first load to the last store of a packing kernel.
        mma_sync_rate: Share of the tensor cores' rate that mma.sync reaches before Hopper.
        hopper_mma_sync_rate: The same on Hopper, where only wgmma reaches it all.
        mma_launch_cycles: Between two launches of a GEMM with mma.sync, besides its tiles. This and
            the other constants of mma.sync that follow from short kernels (fill, latency of
            cp.async, exposed_port_share, window_copy_cycles, rolled_gather_ratio) are from
            ``benchmarks/results/2026-11-28-cuda-sweep-2.jsonl``, an H200.
        mma_fill_cycles: Before the first and after the last K block of a GEMM with mma.sync.
        mma_copy_latency_cycles: Latency of cp.async in a GEMM with mma.sync.
        mma_time_ratio: Measured over predicted cycles of a K block of mma.sync kernels on Hopper.
        gather_instructions: Issue slots of a warp's copy of less than 16 bytes under a condition,
            with its address, from eight kernels of convolutions of 3 channels on an H200
            (2026-11-28).
        gather_stall_cycles: Stall cycles of such a copy, from the same kernels.
        gather_load_cycles: Stall of such a load into registers where the tile is not made of whole
            rows of the image: conditions on the row stay in the loop, and loads wait one by one.
        gather_ahead_cycles: That stall where the loads are one stage ahead.
        unrolled_gather_bytes: Copies of a thread times bytes of a K block's row up to which nvcc
            unrolls the loop of such copies, so that their loads are in flight together.
        rolled_gather_ratio: Issue slots of such a copy in a loop that is not unrolled, relative.
        window_copy_cycles: Stall cycles of a 16-byte copy under a condition (a padded convolution),
            and issue slots of its warp: quotients and remainders of its address.
        shared_line_cycles: For which a 128-byte line from L2 keeps the shared-memory port busy.
        register_copy_ratio: How many times as long where the line goes through registers.
        shared_access_cycles: Of that port for a load and a store of a warp, of any width.
        exposed_port_share: Share of the port's time that is exposed without double-buffered
            fragments.
        staged_register_share: Share of the elements staged through registers that have their own.
        shared_return_cycles: In which shared memory returns 16 bytes to each lane of a warp.
        lone_warp_stall_share: Stall of a warp that is alone on its scheduler, relative to its work.
        barrier_stall_share: Barrier stall of a tile that runs alone, relative to its work.
        simt_fill_cycles: Before the first multiply-add of a SIMT GEMM and after the last. With
            it, five GEMMs of 16 and 32 rows take 0.75 to 1.04 of the prediction (H200, 2026-11-28).
        clock_ratio: Measured SIMT time relative to the data sheet's clock; the clock boosts.
    """

    launch_cycles: float = 2500.0
    small_block_launch_cycles: float = 170.0
    dram_latency_cycles: float = 900.0
    l2_latency_cycles: float = 300.0
    async_copy_latency_cycles: float = 1300.0
    stream_bandwidth_share: float = 0.92
    sm_l2_bytes_per_cycle: float = 64.0
    sm_tile_bytes_per_cycle: float = 48.0
    l2_resident_share: float = 0.5
    l1_resident_share: float = 0.75
    issue_slot_share: float = 0.8
    lone_warp_instruction_cycles: float = 2.5
    exposed_share: float = 0.2
    single_wait_exposed_share: float = 0.6
    wave_tail_share: float = 0.15
    shuffle_instructions: float = 6.0
    shuffle_cycles: float = 45.0
    cross_warp_cycles: float = 150.0
    overlap_exponent: float = 3.0
    row_launch_cycles: float = 1480.0
    row_block_cycles: float = 116.0
    row_instructions: float = 6.0
    row_issue_slots: float = 0.85
    row_instruction_cycles: float = 0.83
    row_line_cycles: float = 0.79
    row_l2_wait_cycles: float = 30.0
    row_dram_wait_cycles: float = 44.0
    row_l2_bandwidth_ratio: float = 1.4
    row_shuffle_cycles: float = 49.0
    row_cross_warp_cycles: float = 40.0
    row_guard_cycles: float = 95.0
    reread_cycles: float = 31.0
    reread_line_cycles: float = 2.35
    split_line_share: float = 0.4
    phase_stall_warps: float = 0.63
    partial_sector_lines: float = 3.0
    reduction_instructions: float = 30.0
    block_reduction_instructions: float = 40.0
    elementwise_instructions: float = 25.0
    transform_instructions: float = 60.0
    load_instructions: float = 8.0
    window_load_instructions: float = 2.0
    transform_access_instructions: float = 4.0
    unpack_instructions: float = 5.0
    accumulator_time_share: float = 0.03
    vector_dram_share: float = 0.03
    small_block_dram_share: float = 0.004
    copy_step_cycles: float = 120.0
    copy_time_ratio: float = 0.95
    bank_conflict_degree: float = 1.5
    block_reduction_time_ratio: float = 1.25
    fallback_time_ratio: float = 3.0
    gemv_launch_cycles: float = 1770.0
    gemv_block_cycles: float = 55.0
    gemv_next_block_cycles: float = 200.0
    gemv_instructions: float = 17.0
    gemv_load_instructions: float = 1.35
    gemv_step_instructions: float = 1.95
    gemv_guard_instructions: float = 3.3
    gemv_wide_guard_instructions: float = 24.0
    gemv_row_guard_instructions: float = 5.2
    gemv_convert_half_slots: float = 0.73
    gemv_convert_byte_slots: float = 2.8
    gemv_instruction_cycles: float = 5.0
    gemv_integer_cycles: float = 1.5
    gemv_unrolled_steps: int = 4
    gemv_l2_wait_cycles: float = 83.0
    gemv_dram_wait_cycles: float = 480.0
    gemv_l1_bytes_per_cycle: float = 128.0
    gemv_shuffle_instructions: float = 3.0
    gemv_shuffle_cycles: float = 11.8
    gemv_cross_warp_cycles: float = 170.0
    gemv_l2_bandwidth_ratio: float = 1.3
    gemv_wave_tail_share: float = 0.1
    gemv_l2_resident_share: float = 0.85
    gemv_time_ratio: float = 0.75
    int4_tile_instructions: float = 190.0
    int4_fine_scale_instructions: float = 64.0
    int4_stage_instructions: float = 70.0
    int4_issue_slot_share: float = 0.7
    int4_load_latency_cycles: float = 1100.0
    int4_start_cycles: float = 1800.0
    int4_end_cycles: float = 500.0
    packing_cycles: float = 500.0
    mma_sync_rate: float = 0.9
    hopper_mma_sync_rate: float = 0.62
    mma_launch_cycles: float = 1100.0
    mma_fill_cycles: float = 300.0
    mma_copy_latency_cycles: float = 800.0
    mma_time_ratio: float = 1.3
    gather_instructions: float = 25.0
    gather_stall_cycles: float = 45.0
    window_copy_cycles: float = 190.0
    gather_load_cycles: float = 300.0
    gather_ahead_cycles: float = 110.0
    unrolled_gather_bytes: float = 512.0
    rolled_gather_ratio: float = 1.6
    shared_line_cycles: float = 3.05
    register_copy_ratio: float = 1.5
    shared_access_cycles: float = 4.0
    exposed_port_share: float = 0.17
    staged_register_share: float = 0.75
    shared_return_cycles: float = 3.0
    lone_warp_stall_share: float = 0.9
    barrier_stall_share: float = 0.04
    simt_fill_cycles: float = 1500.0
    clock_ratio: float = 0.79
