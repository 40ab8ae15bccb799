"""Configuration space of fused attention with mma.sync, ranked by predicted cycles."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.attention.problem import AttentionProblem
from tvmopt.kernels.cuda.common.attention_limits import why_not_fused
from tvmopt.kernels.cuda.mma.attention.config import ATTENTION, MmaAttentionConfig, rows_of
from tvmopt.kernels.cuda.mma.attention.cost import mma_attention_cost
from tvmopt.kernels.ranked import Ranked

# Warps along the rows, tiles of 16 rows of a warp, warps along the keys.
_WARPS = (
    (4, 1, 1), (8, 1, 1), (4, 2, 1), (2, 1, 1), (2, 2, 1),
    (1, 1, 4), (1, 1, 8), (1, 2, 4), (2, 1, 2), (2, 1, 4), (1, 1, 2),
)  # fmt: skip
_KEYS_OF_WARP = (16, 32, 64, 128)
_MOST_TILE_KEYS = 256
_STAGES = (2, 3, 4, 5)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Splits stop at this many thread blocks an SM: more of them only add partial outputs.
_MOST_BLOCKS_PER_SM = 8


def mma_attention_configs(
    problem: AttentionProblem, arch: CudaArch
) -> list[Ranked[MmaAttentionConfig]]:
    """Return the configurations for ``problem``, fastest predicted first."""
    if arch.sm < 80 or why_not_fused(problem):
        return []
    found = []
    for config in _configs(problem, MmaAttentionConfig(ATTENTION, arch)):
        if config.why_not(problem) is not None:
            continue
        cost = mma_attention_cost(problem, config)
        if cost is not None:
            facts = (cost.total, cost.block, cost.compute, cost.memory, cost.flight)
            found.append(Ranked(config, cost.total, facts))
    # At equal cost, fewer partial outputs, then less shared memory.
    found.sort(key=lambda one: (one.cycles, one.hint.split_k, one.hint.smem_bytes(problem)))
    return found


def _configs(problem: AttentionProblem, base: MmaAttentionConfig) -> Iterator[MmaAttentionConfig]:
    heads = problem.batch * problem.kv_heads
    for (rows, tiles, keys), each, stages, held in itertools.product(
        _WARPS, _KEYS_OF_WARP, _STAGES, (False, True)
    ):
        if keys * each > _MOST_TILE_KEYS or rows * tiles * 16 >= 2 * max(16, rows_of(problem)):
            continue
        tile = dataclasses.replace(
            base, row_warps=rows, row_tiles=tiles, key_warps=keys, tile_keys=keys * each,
            stages=stages, query_registers=held,
        )  # fmt: skip
        for splits in _SPLITS:
            grid = heads * tile.tiles(problem) * splits
            if splits == 1 or grid <= _MOST_BLOCKS_PER_SM * base.arch.sms:
                yield dataclasses.replace(tile, split_k=splits)
