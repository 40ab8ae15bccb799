"""Predicted cycles of fused attention, from issue rates of an SM, fitted to an H200 and an H100.

The constants below are a fit to the latencies of benchmarks/results/2026-11-27-attention.md: 150
kernels of 24 problems. By them the top-1 is within 0.4% of the best measured (geometric mean), and
4.7% at worst.

A block of keys takes, for all consumer warpgroups of a thread block, the longest of:

- a share of both GEMMs and of the softmax (issue slots and MUFU), since they overlap;
- the loads of K and V from L2;
- the latency of one warpgroup, whose softmax overlaps only its own second GEMM.

With a causal mask, the order of the tiles decides how evenly SMs are loaded, and how often DRAM
reads K and V (:mod:`.causal_order`). Predicted over measured times of 133 causal kernels, of those
results and of 2026-11-28-gpu.md: geometric mean 1.02, standard deviation 6%. Two stages of Q have
not been measured.
"""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.attention.problem import AttentionProblem, MaskedBy
from tvmopt.kernels.cuda.common.attention_traffic import dram_cycles
from tvmopt.kernels.cuda.hopper.attention.causal_order import blocks_of_tiles, causal_load
from tvmopt.kernels.cuda.hopper.attention.config import HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.attention.operand_layout import padded_size
from tvmopt.kernels.cuda.hopper.attention.tiles import group_of_heads
from tvmopt.kernels.cuda.hopper.problem import ceil_div

# A warp's exponential occupies the MUFU of its scheduler for this many cycles (16 lanes an SM).
_MUFU_CYCLES = 8
# Issue cycles of a score in a thread: FFMA, MUFU, sum, half a conversion at half the rate; and of
# its maximum, at half the rate (FMNMX), or of three at once (VIMNMX3, whose rate is an estimate).
_SCORE_CYCLES, _MAX_CYCLES, _INTEGER_MAX_CYCLES = 3.3, 3.1, 0.89
# Issue cycles of a block that do not depend on its size: shuffles, descriptors, barriers.
_BLOCK_CYCLES = 62.0
# Issue cycles that a masked score adds: with bounds, or with a mask that is loaded; estimates.
_BOUND_CYCLES, _MASK_CYCLES = 3.0, 12.0
_L2_BYTES_PER_CYCLE_PER_SM = 64.0
# Shares of wgmma's nominal time, and of the sum of MUFU and issue cycles, that are not hidden.
_WGMMA_SHARE, _SOFTMAX_SHARE = 0.84, 0.43
# Latency of a block's barriers, shuffles and first wgmma; more warpgroups hide more of it.
_BLOCK_LATENCY, _HIDING = 1380.0, 1.2
# Latencies of the loads before a tile's first GEMM; of its stores where they overlap the loads of
# the next tile, and where they do not; with two stages of Q (an estimate, not yet measured); of the
# start of a thread block (an estimate), of the launch.
_LOAD_CYCLES, _HIDDEN_STORE_CYCLES, _STORE_CYCLES = 1950.0, 1210.0, 1940.0
_OVERLAPPED_STORE_CYCLES = 800.0
_START_CYCLES, _LAUNCH_CYCLES = 1000.0, 6390.0
# Time without ping-pong over that with it; measured ratios are 0.96 to 1.02.
_COMPETING = 1.028


@dataclasses.dataclass(frozen=True)
class AttentionCost:
    """Predicted cycles.

    Attributes:
        total: Of the whole kernel.
        block: Of a block of keys.
        blocks: Mean number of blocks of keys that an SM computes.
    """

    total: float
    block: float
    blocks: float


def attention_cost(problem: AttentionProblem, config: HopperAttentionConfig) -> AttentionCost:
    """Return the predicted cycles of ``config``."""
    p, c = problem, config
    gemms, softmax = _gemm_cycles(p, c), _softmax_cycles(p, c)
    block = _block_cycles(p, c, gemms, softmax)
    # A warpgroup's first softmax and its last O overlap no other work of it; nor does its first S,
    # unless it comes before the epilogue.
    ends = gemms[1] + softmax + (gemms[0] if c.query_stages == 1 else 0)
    if p.causal is not MaskedBy.NOTHING or p.keys % c.tile_keys:
        ends += c.consumer_warpgroups * _BOUND_CYCLES * c.tile_keys / 2
    if c.query_stages > 1:
        ends += _OVERLAPPED_STORE_CYCLES
    elif c.persistent:
        ends += _HIDDEN_STORE_CYCLES if c.own_output else _STORE_CYCLES + _LOAD_CYCLES
    else:
        ends += _STORE_CYCLES + _LOAD_CYCLES + _START_CYCLES
    if p.causal is MaskedBy.NOTHING:
        each = ceil_div(p.keys, c.tile_keys)
        tiles = p.batch * p.heads * ceil_div(p.queries, c.tile_queries)
        # Tiles of equal length come in waves.
        work = ceil_div(tiles, c.arch.sms) * (each * block + ends)
        blocks = tiles * each
    else:
        sizes = blocks_of_tiles(p, c)
        each, blocks = max(sizes), p.batch * p.heads * sum(sizes)
        heads = c.head_group or group_of_heads(p, c, len(sizes))
        load = causal_load(p.batch * p.heads, sizes, heads, c.arch.sms)
        work = load.cycles(p, c, block, ends, heads)
    # A few queries over many keys take the time of DRAM.
    total = max(work, each * block + ends, dram_cycles(p, c.arch)) + _LAUNCH_CYCLES
    return AttentionCost(total, block, blocks / c.arch.sms)


def _gemm_cycles(p: AttentionProblem, c: HopperAttentionConfig) -> tuple[float, float]:
    """Return the cycles of both GEMMs of a warpgroup: a wgmma of 64 x N x 16 takes N / 2."""
    scores = padded_size(p.head_size) // 16 * c.tile_keys / 2
    output = c.tile_keys // 16 * padded_size(p.value_size) / 2
    return _WGMMA_SHARE * scores, _WGMMA_SHARE * output


def _softmax_cycles(p: AttentionProblem, c: HopperAttentionConfig) -> float:
    """Return the cycles of the softmax of a warpgroup, for a block of keys."""
    each = c.tile_keys // 2  # scores of a thread
    cycles = (_INTEGER_MAX_CYCLES if c.integer_max else _MAX_CYCLES) + _SCORE_CYCLES
    if p.mask_shape is not None:
        cycles += _MASK_CYCLES
    issue = cycles * each + _BLOCK_CYCLES
    if not c.lazy_rescale:
        issue += padded_size(p.value_size) // 2
    return _SOFTMAX_SHARE * (issue + _MUFU_CYCLES * each)


def _block_cycles(
    p: AttentionProblem, c: HopperAttentionConfig, gemms: tuple[float, float], softmax: float
) -> float:
    """Return the cycles of a block of keys, of all warpgroups."""
    groups, (scores, output) = c.consumer_warpgroups, gemms
    busy = groups * (scores + output + softmax)
    if groups > 1 and not c.pingpong:
        busy *= _COMPETING
    sizes = padded_size(p.head_size) + padded_size(p.value_size)
    loads = 2 * c.tile_keys * sizes / _L2_BYTES_PER_CYCLE_PER_SM
    return max(busy, loads, scores + max(output, softmax)) + _BLOCK_LATENCY / groups**_HIDING
