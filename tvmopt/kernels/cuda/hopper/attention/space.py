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
from tvmopt.kernels.cuda.hopper.attention.cost import AttentionCost, attention_cost
from tvmopt.kernels.ranked import Ranked

_TILE_KEYS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224)
# More stages than these hide no more latency.
_MOST_STAGES = 4


def attention_configs(
    problem: AttentionProblem, arch: CudaArch
) -> list[Ranked[HopperAttentionConfig]]:
    """Return the configurations for ``problem``, fastest predicted first."""
    if not arch.has_wgmma or why_not_fused(problem):
        return []
    found = []
    for every in _configs(problem, HopperAttentionConfig(ATTENTION, arch)):
        config, cost = _best_order(problem, every)
        found.append(Ranked(config, cost.total, (cost.total, cost.block, cost.blocks)))
    # At equal cost, deeper rings.
    found.sort(key=lambda one: (one.cycles, -one.hint.stages))
    return found


def _best_order(
    problem: AttentionProblem, config: HopperAttentionConfig
) -> tuple[HopperAttentionConfig, AttentionCost]:
    """Return ``config`` with the group of heads of the lowest cost, and the cost."""
    if problem.causal is MaskedBy.NOTHING:
        return config, attention_cost(problem, config)
    orders = (
        dataclasses.replace(config, head_group=size) for size in group_sizes(problem, config)
    )
    costs = ((one, attention_cost(problem, one)) for one in orders)
    return min(costs, key=lambda one: one[1].total)


def _configs(
    problem: AttentionProblem, base: HopperAttentionConfig
) -> Iterator[HopperAttentionConfig]:
    """Yield each tile with the deepest ring that fits."""
    replace, same = dataclasses.replace, problem.head_size == problem.value_size
    both = (True, False)
    for groups, keys, pingpong, persistent, integer, lazy in itertools.product(
        (1, 2, 3), _TILE_KEYS, both, both, both, both
    ):
        if pingpong and groups == 1:
            continue
        tile = replace(
            base, consumer_warpgroups=groups, tile_keys=keys, pingpong=pingpong,
            persistent=persistent, integer_max=integer, lazy_rescale=lazy,
        )  # fmt: skip
        for own, query_stages in _memory_of_output(persistent, same):
            one = replace(tile, own_output=own, query_stages=query_stages)
            full = _filled(one, problem)
            if full is not None:
                yield full


def _memory_of_output(persistent: bool, same: bool) -> Iterator[tuple[bool, int]]:
    """Yield whether the output tile has memory of its own, and the stages of Q.

    Args:
        persistent: Whether a thread block has several tiles; otherwise one stage of Q is enough.
        same: Whether the output has the head size of Q, whose memory it can take.
    """
    if persistent or not same:
        yield True, 1
    if same:
        yield False, 1
    if persistent and same:
        yield False, 2


def _filled(
    config: HopperAttentionConfig, problem: AttentionProblem
) -> HopperAttentionConfig | None:
    for stages in range(_MOST_STAGES, 1, -1):
        full = dataclasses.replace(config, stages=stages)
        if full.why_not(problem) is None:
            return full
    return None
