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
        # Without a next tile, an output tile of its own gains nothing.
        for own in (True, False) if persistent or not same else (False,):
            full = _filled(replace(tile, own_output=own), problem)
            if full is not None:
                yield full


def _filled(
    config: HopperAttentionConfig, problem: AttentionProblem
) -> HopperAttentionConfig | None:
    for stages in range(_MOST_STAGES, 1, -1):
        full = dataclasses.replace(config, stages=stages)
        if full.why_not(problem) is None:
            return full
    return None
