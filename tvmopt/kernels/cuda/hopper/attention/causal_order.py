"""Load of SMs and of DRAM under the order of the tiles of causal attention.

A persistent thread block takes tiles in snake order (:mod:`.tiles`). How evenly that divides the
blocks of keys depends on the heads of a group: it is even where the tiles of a group fill whole
pairs of rounds. K and V of a group are read from DRAM once if they fit into L2, and by each round
otherwise. In a round that starts new heads DRAM may be the limit, while the SMs are in the next.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from tvmopt.kernels.attention.problem import AttentionProblem, causal_offset
from tvmopt.kernels.cuda.common.head_groups import heads_of_group
from tvmopt.kernels.cuda.hopper.attention.config import HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.problem import ceil_div

_BYTES = 2  # of an element
# Rounds of one tile an SM that the tiles of a group fill.
_ROUNDS = (1, 2, 3, 4, 6, 8)
# DRAM and SMs overlap: a round takes this norm of both times; by 16 kernels limited by DRAM, of
# benchmarks/results/2026-11-27-attention.md and 2026-11-28-gpu.md.
_OVERLAP_NORM = 4.0


@dataclasses.dataclass(frozen=True)
class CausalLoad:
    """Tiles and blocks of keys by SM and by round; a round is one tile for each SM.

    Attributes:
        sm_tiles: Tiles of each SM.
        sm_blocks: Blocks of keys of each SM.
        round_tiles: Tiles of each round.
        round_blocks: Blocks of keys of each round.
        new_blocks: Blocks of K and V of each round, of heads without an earlier tile.
        all_blocks: Different blocks of K and V that the tiles of each round read.
    """

    sm_tiles: np.ndarray
    sm_blocks: np.ndarray
    round_tiles: np.ndarray
    round_blocks: np.ndarray
    new_blocks: np.ndarray
    all_blocks: np.ndarray

    def cycles(
        self, problem: AttentionProblem, config: HopperAttentionConfig, block: float, ends: float,
        heads: int,
    ) -> float:  # fmt: skip
        """Return the cycles of all tiles.

        Args:
            problem: The problem.
            config: Tile and GPU.
            block: Cycles of a block of keys.
            ends: Cycles of a tile besides its blocks.
            heads: Heads of a group.
        """
        p, arch = problem, config.arch
        sizes = p.head_size + p.value_size
        # Bytes of a block of K and V, of which some heads of Q share one.
        cache = _BYTES * config.tile_keys * sizes * p.kv_heads / p.heads
        group_bytes = heads * p.cache_bytes() / (p.batch * p.heads)
        evicted = min(max(group_bytes / (arch.l2_bytes / 2) - 1, 0.0), 1.0)
        read = self.new_blocks + evicted * (self.all_blocks - self.new_blocks)
        moved = read * cache + self.round_tiles * (_BYTES * config.tile_queries * sizes)
        dram = moved / (arch.dram_bytes_cycle * arch.costs.stream_bandwidth_share)
        busy = (self.round_blocks * block + self.round_tiles * ends) / arch.sms
        norm = _OVERLAP_NORM
        rounds = float(((dram**norm + busy**norm) ** (1 / norm)).sum())
        if not config.persistent:  # the GPU gives the next tile to the first SM that is free
            return rounds
        return max(rounds, float((self.sm_blocks * block + self.sm_tiles * ends).max()))


def blocks_of_tiles(problem: AttentionProblem, config: HopperAttentionConfig) -> tuple[int, ...]:
    """Return the blocks of keys of each tile of queries of a head, with a causal mask."""
    p, c = problem, config
    return _blocks_of_tiles(p.queries, p.keys, causal_offset(p), c.tile_queries, c.tile_keys)


@functools.cache
def _blocks_of_tiles(
    queries: int, keys: int, offset: int, tile_queries: int, tile_keys: int
) -> tuple[int, ...]:
    lasts = (
        min((tile + 1) * tile_queries, queries) + offset
        for tile in range(ceil_div(queries, tile_queries))
    )
    return tuple(ceil_div(min(max(last, 1), keys), tile_keys) for last in lasts)


def group_sizes(problem: AttentionProblem, config: HopperAttentionConfig) -> list[int]:
    """Return numbers of heads of a group to choose from: some fill whole rounds, some L2."""
    p, sms = problem, config.arch.sms
    rows, across = p.batch * p.heads, ceil_div(p.queries, config.tile_queries)
    found = {max(1, rounds * sms // across) for rounds in _ROUNDS}
    found |= {1, rows, heads_of_group(rows, p.cache_bytes(), across, config.arch)}
    return sorted(size for size in found if size <= rows)


@functools.cache
def causal_load(rows: int, blocks: tuple[int, ...], heads: int, sms: int) -> CausalLoad:
    """Return the load of the order.

    Args:
        rows: Heads of all batches.
        blocks: Blocks of keys of each tile of a head.
        heads: Heads of a group, whose tiles come longest first.
        sms: Thread blocks of the grid.
    """
    across = len(blocks)
    number = np.arange(rows * across)
    group, within = np.divmod(number, heads * across)
    count = np.minimum(heads, rows - group * heads)
    row, index = group * heads + within % count, across - 1 - within // count
    size = np.asarray(blocks)[index]
    turn, place = np.divmod(number, sms)
    sm = np.where(turn % 2 == 0, place, sms - 1 - place)
    # Tiles of a head that share a round read the blocks of the longest, which comes first.
    order = np.argsort(turn * rows + row, kind="stable")
    pairs = (turn * rows + row)[order]
    first = order[np.concatenate([[True], pairs[1:] != pairs[:-1]])]
    turns = int(turn[-1]) + 1

    def by_round(chosen: np.ndarray) -> np.ndarray:
        return np.bincount(turn[chosen], size[chosen], turns)

    return CausalLoad(
        np.bincount(sm, minlength=sms), np.bincount(sm, size, sms),
        np.bincount(turn, minlength=turns), by_round(number),
        by_round(number[index == across - 1]), by_round(first),
    )  # fmt: skip
