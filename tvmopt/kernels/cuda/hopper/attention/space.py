"""Configuration space of fused attention, ranked by predicted cycles."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.attention.problem import AttentionProblem, MaskedBy
from tvmopt.kernels.cuda.common.attention_limits import why_not_fused
from tvmopt.kernels.cuda.hopper.attention.causal_order import group_sizes
from tvmopt.kernels.cuda.hopper.attention.config import ATTENTION, HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.attention.cost import attention_cost
from tvmopt.kernels.ranked import Ranked

_TILE_KEYS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224)
# Most keys of a block with two stages of Q and a causal mask: both the loop over tiles and the last
# tile have a masked and an unmasked loop, and ptxas took 40 s for 160 keys at head size 128.
_MOST_KEYS_OF_TWO_Q_STAGES = 128
# More stages than these hide no more latency.
_MOST_STAGES = 4


def attention_configs(
    problem: AttentionProblem, arch: CudaArch
) -> list[Ranked[HopperAttentionConfig]]:
    """Return the configurations for ``problem``, fastest predicted first."""
    if not arch.has_wgmma or why_not_fused(problem):
        return []
    found = []
    for config in _configs(problem, HopperAttentionConfig(ATTENTION, arch)):
        cost = attention_cost(problem, config)
        found.append(Ranked(config, cost.total, (cost.total, cost.block, cost.blocks)))
    # At equal cost, deeper rings.
    found.sort(key=lambda one: (one.cycles, -one.hint.stages))
    return found


def _group(problem: AttentionProblem, config: HopperAttentionConfig) -> int:
    """Return the heads of a group that cost least with this tile; 0 without a causal mask."""
    if problem.causal is MaskedBy.NOTHING:
        return 0

    def cycles(heads: int) -> float:
        return attention_cost(problem, dataclasses.replace(config, head_group=heads)).total

    return min(group_sizes(problem, config), key=cycles)


def _configs(
    problem: AttentionProblem, base: HopperAttentionConfig
) -> Iterator[HopperAttentionConfig]:
    """Yield each tile with the deepest ring that fits."""
    replace, same = dataclasses.replace, problem.head_size == problem.value_size
    both, causal = (True, False), problem.causal is not MaskedBy.NOTHING
    for groups, keys, persistent in itertools.product((1, 2, 3), _TILE_KEYS, both):
        tile = replace(base, consumer_warpgroups=groups, tile_keys=keys, persistent=persistent)
        filled = (
            _filled(replace(tile, own_output=own, query_stages=stages), problem)
            for own, stages in _memory_of_output(persistent, same)
            if stages == 1 or not causal or keys <= _MOST_KEYS_OF_TWO_Q_STAGES
        )
        fitting = [one for one in filled if one is not None]
        if not fitting:
            continue
        heads = _group(problem, fitting[0])
        turns = both if groups > 1 else (False,)
        for one, pingpong, integer, lazy in itertools.product(fitting, turns, both, both):
            yield replace(
                one, pingpong=pingpong, integer_max=integer, lazy_rescale=lazy, head_group=heads
            )


def _memory_of_output(persistent: bool, same: bool) -> Iterator[tuple[bool, int]]:
    """Yield whether the output tile has separate memory, and the stages of Q.

    Args:
        persistent: Whether a thread block has several tiles; otherwise one stage of Q is enough.
        same: Whether the output has the head size of Q, whose memory it can take.
    """
    stages = (2, 1) if persistent else (1,)
    if persistent or not same:
        yield from ((True, one) for one in stages)
    if same:
        yield from ((False, one) for one in stages)


def _filled(
    config: HopperAttentionConfig, problem: AttentionProblem
) -> HopperAttentionConfig | None:
    for stages in range(_MOST_STAGES, 1, -1):
        full = dataclasses.replace(config, stages=stages)
        if full.why_not(problem) is None:
            return full
    return None
