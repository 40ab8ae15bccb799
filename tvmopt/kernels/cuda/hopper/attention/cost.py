"""Predicted cycles of fused attention, from the issue rates of an SM; nothing is fitted yet.

A block of keys takes, for all consumer warpgroups of a thread block, the longest of:

- tensor cores: both GEMMs;
- MUFU: one exponential an element, at 16 lanes a cycle and SM;
- issue slots: the instructions of the softmax, one a cycle and scheduler;
- L2: the loads of K and V;
- latency: of one warpgroup, whose softmax overlaps only its own second GEMM.
"""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.attention.problem import AttentionProblem, MaskedBy
from tvmopt.kernels.cuda.hopper.attention.config import HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.attention.operand_layout import padded_size
from tvmopt.kernels.cuda.hopper.attention.tiles import causal_offset
from tvmopt.kernels.cuda.hopper.problem import ceil_div

# A warp's exponential occupies the MUFU of its scheduler for this many cycles (16 lanes an SM).
_MUFU_CYCLES = 8
# Instructions of the softmax of one score in a thread: maximum, FFMA, MUFU, sum, half a conversion.
_SCORE_INSTRUCTIONS = 4.5
# Instructions of a block that do not depend on its size: shuffles, descriptors, barriers.
_BLOCK_INSTRUCTIONS = 70
# Instructions that a masked score adds: with bounds, or with a mask that is loaded.
_BOUND_INSTRUCTIONS, _MASK_INSTRUCTIONS = 2, 10
_L2_BYTES_PER_CYCLE_PER_SM = 64.0
# Latencies in cycles: of a block besides its instructions, of the loads before a tile's first GEMM,
# and of its stores; estimates.
_BLOCK_CYCLES, _LOAD_CYCLES, _STORE_CYCLES = 180.0, 1200.0, 900.0
_LAUNCH_CYCLES = 3000.0
# Without ping-pong, warpgroups compete for the tensor cores; an estimate.
_COMPETING = 1.06


@dataclasses.dataclass(frozen=True)
class AttentionCost:
    """Predicted cycles.

    Attributes:
        total: Of the whole kernel.
        block: Of a block of keys.
        blocks: Blocks of keys that the busiest SM computes.
    """

    total: float
    block: float
    blocks: float


def attention_cost(problem: AttentionProblem, config: HopperAttentionConfig) -> AttentionCost:
    """Return the predicted cycles of ``config``."""
    p, c = problem, config
    sizes = padded_size(p.head_size), padded_size(p.value_size)
    groups = c.consumer_warpgroups
    # A wgmma of 64 x N x 16 takes N / 2 cycles.
    scores = sizes[0] // 16 * c.tile_keys / 2
    output = c.tile_keys // 16 * sizes[1] / 2
    each = c.tile_keys // 2  # scores of a thread
    instructions = _SCORE_INSTRUCTIONS * each + sizes[1] // 2 + _BLOCK_INSTRUCTIONS
    if p.mask_shape is not None:
        instructions += _MASK_INSTRUCTIONS * each
    mufu = _MUFU_CYCLES * each
    loads = 2 * c.tile_keys * sum(sizes) / _L2_BYTES_PER_CYCLE_PER_SM
    softmax = max(mufu, instructions) + _BLOCK_CYCLES
    latency = scores + max(output, softmax)
    block = max(groups * (scores + output), groups * mufu, groups * instructions, loads, latency)
    if groups > 1 and not c.pingpong:
        block *= _COMPETING
    tiles, blocks = _tiles_and_blocks(p, c)
    ends = scores + output + softmax + sizes[1] // 2
    if p.causal is not MaskedBy.NOTHING or p.keys % c.tile_keys:
        ends += groups * _BOUND_INSTRUCTIONS * each
    ends += _STORE_CYCLES if c.persistent and c.own_output else _STORE_CYCLES + _LOAD_CYCLES
    # Tiles of equal length come in waves; tiles of a causal mask are balanced.
    sms = c.arch.sms
    waves = tiles / sms if p.causal is not MaskedBy.NOTHING else ceil_div(tiles, sms)
    waves = max(1.0, float(waves))
    each_tile = (blocks / tiles - 1) * block + ends
    longest = ceil_div(p.keys, c.tile_keys) * block + ends
    total = max(waves * each_tile, longest) + _LAUNCH_CYCLES
    return AttentionCost(total, block, blocks / sms)


def _tiles_and_blocks(p: AttentionProblem, c: HopperAttentionConfig) -> tuple[int, int]:
    """Return tiles of queries, and blocks of keys of all tiles."""
    rows, across = p.batch * p.heads, ceil_div(p.queries, c.tile_queries)
    if p.causal is MaskedBy.NOTHING:
        return rows * across, rows * across * ceil_div(p.keys, c.tile_keys)
    blocks = 0
    for tile in range(across):
        last = min((tile + 1) * c.tile_queries, p.queries) + causal_offset(p)
        blocks += ceil_div(min(max(last, 1), p.keys), c.tile_keys)
    return rows * across, rows * blocks
