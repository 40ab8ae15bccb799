"""Tile scheduler of attention: which queries of which head are next, and which blocks of keys.

Tiles of full attention all take equally long. Consecutive ones are of one head, whose K and V they
share in L2. With a causal mask the longest tiles (the last queries) of a group of heads come first
(LPT order). The cost model chooses the size of a group (:mod:`.causal_order`). A persistent thread
block takes its tiles from both ends of each round (snake order)::

    round 0   0  1  2  3      a thread block's tiles: 0 7 8 .., 1 6 9 .., 2 5 10 .., 3 4 11 ..
    round 1   7  6  5  4
    round 2   8  9 10 11
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.attention.problem import AttentionProblem, MaskedBy, causal_offset
from tvmopt.kernels.cuda.common.head_groups import heads_of_group
from tvmopt.kernels.cuda.hopper.attention.config import HopperAttentionConfig
from tvmopt.kernels.cuda.hopper.emit import Scalar, Threads, const, held, quotient, remainder
from tvmopt.kernels.cuda.hopper.problem import ceil_div


@dataclasses.dataclass(frozen=True)
class QueryTile:
    """A tile of queries of one head.

    Attributes:
        query: First query.
        head: Head of Q.
        kv_head: Head of K and V.
        batch: Batch index.
        blocks: Blocks of keys that some query sees, at least one.
        whole_blocks: Blocks, from the first key on, that all queries see entirely.
    """

    query: Expr
    head: Expr
    kv_head: Expr
    batch: Expr
    blocks: Expr
    whole_blocks: Expr


class QueryTileScheduler:
    """Grid of the kernel, and the tiles of each thread block."""

    def __init__(self, problem: AttentionProblem, config: HopperAttentionConfig) -> None:
        self._p, self._c = problem, config
        self._across = ceil_div(problem.queries, config.tile_queries)
        self._total = self._across * problem.heads * problem.batch
        self._grid = min(self._total, config.arch.sms) if config.persistent else self._total
        self._causal = problem.causal is not MaskedBy.NOTHING
        self._group = group_of_heads(problem, config, self._across)

    def launch(self) -> Threads:
        """Emit the grid and the thread indices."""
        self._first = T.cta_id([self._grid])
        return Threads(
            warpgroup=T.warpgroup_id([self._c.consumer_warpgroups + 1]),
            warp=T.warp_id_in_wg([4]),
            lane=T.lane_id([32]),
            thread=T.thread_id_in_wg([128]),
            rank=const(0),
        )

    @contextmanager
    def tiles(self) -> Iterator[QueryTile]:
        """Emit the body once for each tile of the thread block."""
        if self._grid == self._total:
            yield self._tile(self._first)
            return
        number, step = self._start()
        with build.While(number.value < self._total):
            yield self._tile(number.value)
            self._advance(number, step)

    @contextmanager
    def tiles_before_last(self) -> Iterator[QueryTile]:
        """Emit the body once for each tile of the thread block but the last one."""
        number, step = self._start()
        self._number = number
        with build.While(number.value + step.value < self._total):
            yield self._tile(number.value)
            self._advance(number, step)

    def last_tile(self) -> QueryTile:
        """Return the last tile of the thread block, after :meth:`tiles_before_last`."""
        return self._tile(self._number.value)

    def _start(self) -> tuple[Scalar, Scalar]:
        """Emit the number of the first tile, and the distance to the next one."""
        # Snake order: the distance to the next tile alternates.
        forth = 2 * (self._grid - 1 - self._first) + 1
        step = Scalar("int32", forth if self._causal else self._grid)
        return Scalar("int32", self._first), step

    def _advance(self, number: Scalar, step: Scalar) -> None:
        number.set(number.value + step.value)
        if self._causal:
            step.set(2 * self._grid - step.value)

    def _tile(self, number: Expr) -> QueryTile:
        p, c = self._p, self._c
        rows = p.heads * p.batch
        if self._causal:
            size = self._group
            group = held(quotient(number, size * self._across))
            within = held(remainder(number, size * self._across))
            count: Expr | int = size
            if rows % size:  # the last group has fewer heads
                count = held(T.min(const(size), rows - group * size))
            index = held((self._across - 1) - quotient(within, count))
            row = held(group * size + remainder(within, count))
        else:
            index, row = held(remainder(number, self._across)), held(quotient(number, self._across))
        head, batch = held(remainder(row, p.heads)), held(quotient(row, p.heads))
        query = held(index * c.tile_queries)
        blocks, whole = self._blocks(query)
        kv_head = held(quotient(head, p.heads // p.kv_heads))
        return QueryTile(query, head, kv_head, batch, blocks, whole)

    def _blocks(self, query: Expr) -> tuple[Expr, Expr]:
        """Return the blocks that some query sees, and those that all see."""
        p, c = self._p, self._c
        if not self._causal:
            return const(ceil_div(p.keys, c.tile_keys)), const(p.keys // c.tile_keys)
        offset = causal_offset(p)
        last = T.min(query + (c.tile_queries - 1), const(p.queries - 1))
        seen = T.min(T.max(last + (offset + 1), const(1)), const(p.keys))
        blocks = held(quotient(seen + (c.tile_keys - 1), c.tile_keys))
        by_all = T.min(T.max(query + (offset + 1), const(0)), const(p.keys))
        return blocks, held(quotient(by_all, c.tile_keys))


def group_of_heads(problem: AttentionProblem, config: HopperAttentionConfig, across: int) -> int:
    """Return the heads of Q (of all batches) whose tiles follow each other in LPT order.

    Args:
        problem: The problem.
        config: Supplies the number, or else the GPU.
        across: Tiles of queries of a head.
    """
    p = problem
    rows = p.heads * p.batch
    if config.head_group:
        return min(config.head_group, rows)
    return heads_of_group(rows, p.cache_bytes(), across, config.arch)
