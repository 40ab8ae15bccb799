"""Predicted cycles of fused attention with mma.sync, from rates and bandwidths of the GPU.

A block of keys takes an SM the 2-norm of three times, which overlap among its warps: the tensor
cores, the port of shared memory (fragments and copies), and issue slots with exponentials. The
kernel takes the 2-norm of that, of the time of DRAM and L2, and of the time in which the bytes in
flight of its thread blocks arrive (Little's law). The latter asks for splits of the keys.

GEMMs have the same rates and latencies (:class:`~tvmopt.device.cuda_costs.CudaCosts`). The
constants below are estimates, not fitted to measurements of this kernel. That one warp for each
tensor core does not overlap them is measured on an H100: head size 128 took 1.4 times as long with
one thread block of four warps on an SM as with two.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from tvmopt.kernels.attention.problem import AttentionProblem, MaskedBy, causal_offset
from tvmopt.kernels.cuda.common.attention_traffic import dram_cycles
from tvmopt.kernels.cuda.common.matmul_problem import resident_blocks
from tvmopt.kernels.cuda.mma.attention.config import (
    MmaAttentionConfig,
    padded_to_mma,
    rows_of,
)

# Issue cycles of a score: maximum, FFMA, MUFU, sum, half a conversion; more with a loaded mask.
_SCORE_CYCLES, _MASK_CYCLES = 6.5, 12.0
# Issue cycles of a warp for a block of keys: shuffles, barrier, loop (estimated).
_BLOCK_CYCLES = 80.0
# A warp's exponential occupies the MUFU of its scheduler for this many cycles; the share that
# other warps' instructions do not hide (estimated).
_MUFU_CYCLES, _MUFU_SHARE = 8.0, 0.5
# Latency of an MMA whose accumulator the next one reads, and of a softmax without its exponentials
# (estimated).
_MMA_LATENCY, _SOFTMAX_LATENCY = 33.0, 350.0
# Cycles of a thread block besides its blocks of keys: first loads, epilogue (estimated); from the
# end of the kernel to the end of the reduction kernel behind it, on Hopper by a dependent launch.
_START_CYCLES, _END_CYCLES = 1950.0, 1500.0
_REDUCTION_CYCLES = 1800.0
# Launch of an attention kernel on Hopper, as fitted for the wgmma kernel.
_HOPPER_LAUNCH_CYCLES = 6390.0
_BYTES = 2


@dataclasses.dataclass(frozen=True)
class MmaAttentionCost:
    """Predicted cycles.

    Attributes:
        total: Of all kernels.
        block: Of a block of keys of one thread block, on an SM with its usual number of them.
        compute: Without the bounds of memory.
        memory: Of DRAM or L2.
        flight: Until the bytes in flight have arrived.
    """

    total: float
    block: float
    compute: float
    memory: float
    flight: float


def mma_attention_cost(
    problem: AttentionProblem, config: MmaAttentionConfig
) -> MmaAttentionCost | None:
    """Return the predicted cycles of ``config``; None where no thread block fits an SM."""
    p, c, arch = problem, config, config.arch
    registers = min(c.registers(p), arch.registers_thread)
    fit = resident_blocks(arch, 32 * c.warps, registers, c.smem_bytes(p))
    if fit == 0:
        return None
    heads, tiles = p.batch * p.kv_heads, c.tiles(p)
    grid = heads * tiles * c.split_k
    together = min(fit, -(-grid // arch.sms))
    mean, longest = _blocks_of_tile(p, c.tile_rows, c.tile_keys)
    each, most = (blocks / c.split_k for blocks in (mean, longest))
    block = _block_cycles(p, c, together)
    ends = (_START_CYCLES + _END_CYCLES) / together
    # Tiles of equal length come in waves; tiles of a causal mask are balanced.
    balanced = p.causal is not MaskedBy.NOTHING and tiles > 1
    on_sm = grid / arch.sms if balanced else -(-grid // arch.sms)
    compute = max(on_sm * (each * block + ends), most * block + ends)
    memory, flight = _memory_cycles(p, c, grid * each, min(grid, arch.sms * together))
    launch = _HOPPER_LAUNCH_CYCLES if arch.has_wgmma else arch.costs.launch_cycles
    total = math.hypot(compute, memory, flight) + launch + _split_cycles(p, c)
    return MmaAttentionCost(total, block, compute, memory, flight)


@functools.cache
def _blocks_of_tile(p: AttentionProblem, tile_rows: int, tile_keys: int) -> tuple[float, int]:
    """Return the mean and the largest number of blocks of keys of a tile of rows."""
    if p.causal is MaskedBy.NOTHING:
        count = -(-p.keys // tile_keys)
        return count, count
    shared, rows, offset = p.heads // p.kv_heads, rows_of(p), causal_offset(p)
    seen = []
    for first in range(0, rows, tile_rows):
        last = (min(first + tile_rows, rows) - 1) // shared
        seen.append(-(-min(max(last + offset + 1, 0), p.keys) // tile_keys))
    return sum(seen) / len(seen), max(seen)


def _block_cycles(p: AttentionProblem, c: MmaAttentionConfig, together: int) -> float:
    """Return the cycles that a block of keys of one of ``together`` thread blocks takes an SM."""
    arch, costs = c.arch, c.arch.costs
    size, values = padded_to_mma(p.head_size), padded_to_mma(p.value_size)
    each = c.tile_keys // c.key_warps  # keys of a warp
    rate = costs.hopper_mma_sync_rate if arch.has_wgmma else costs.mma_sync_rate
    # Fewer warps than tensor cores leave some idle.
    busy = min(1.0, c.warps * together / arch.partitions)
    multiply = c.tile_rows * c.tile_keys * (size + values) / (arch.fma(p.dtype) * rate * busy)
    queries = 0 if c.query_registers else c.warps * 16 * c.row_tiles * size
    moved = (c.row_warps + 1) * c.tile_keys * (size + values) + queries
    port = _BYTES * moved / arch.smem_bandwidth
    scores = c.row_tiles * each / 2  # of a lane
    cycles = _SCORE_CYCLES + (_MASK_CYCLES if p.mask_shape is not None else 0.0)
    fragments = each / 16 * (size + values) / 16
    issue = cycles * scores + c.row_tiles * values / 2 + (2 * c.row_tiles + 1) * fragments
    issue += 2 * c.tile_keys * (size + values) / 8 / (32 * c.warps) + _BLOCK_CYCLES
    issue += 0 if c.query_registers else c.row_tiles * size / 16
    issue += _MUFU_SHARE * _MUFU_CYCLES * scores
    issue *= c.warps / (arch.partitions * costs.issue_slot_share * busy)
    one = math.hypot(multiply, port, issue)
    if c.warps * together <= arch.partitions:  # a warp alone does one after the other
        one = max(one, multiply + issue)
    chain = size / 16 * _MMA_LATENCY + _SOFTMAX_LATENCY + (1 + _MUFU_CYCLES) * scores
    chain += each / 16 * _MMA_LATENCY
    one = max(one, chain / together)
    ahead = (c.stages - 1) * one * together
    return one + max(0.0, costs.async_copy_latency_cycles - ahead) / together


def _memory_cycles(
    p: AttentionProblem, c: MmaAttentionConfig, blocks: float, thread_blocks: int
) -> tuple[float, float]:
    """Return the cycles of the loads of K and V: of DRAM or L2, and by the bytes in flight."""
    arch, costs = c.arch, c.arch.costs
    of_block = _BYTES * c.tile_keys * (p.head_size + p.value_size)
    l2 = blocks * of_block / (arch.l2_bytes_cycle * costs.stream_bandwidth_share)
    flight = blocks / (thread_blocks * (c.stages - 1)) * costs.async_copy_latency_cycles
    return max(dram_cycles(p, arch), l2), flight


def _split_cycles(p: AttentionProblem, c: MmaAttentionConfig) -> float:
    """Return the cycles of partial outputs: to write and read them, and of the second kernel."""
    if c.split_k == 1:
        return 0.0
    arch = c.arch
    lines = p.batch * p.kv_heads * rows_of(p)
    moved = 2 * 4 * c.split_k * lines * p.value_size / arch.l2_bytes_cycle
    # A thread reads 16 partial outputs at once.
    waits = math.ceil(c.split_k / 16) * arch.costs.l2_latency_cycles
    launch = 0.0 if arch.sm >= 90 else arch.costs.launch_cycles / 2
    return moved + waits + launch + _REDUCTION_CYCLES
