"""Masks of a block of scores: keys beyond the end, causal, boolean and additive masks.

Column ``8 j + e`` of a lane is key ``first + 2 (lane % 4) + 8 j + e``, so a bound on keys becomes
one comparison of ``8 j + e`` with a value of the row.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes
from tvmopt.kernels.attention.problem import AttentionProblem, MaskedBy, causal_offset
from tvmopt.kernels.cuda.hopper.attention.softmax import LOG2_E
from tvmopt.kernels.cuda.hopper.attention.tiles import QueryTile
from tvmopt.kernels.cuda.hopper.emit import (
    Threads,
    const,
    copy,
    held,
    quotient,
    remainder,
)

_FLOAT = "float32"
_LOWEST = -math.inf
# A mask below is finite, yet times log2(e) it would not be.
_LEAST_FINITE = -2.3e38


class ScoreMask:
    """Applies all masks of a problem to the scores of a block.

    Attributes:
        every_block: Whether every block is masked, by a tensor.
        is_additive: Whether it scales the scores: the mask is added to scaled scores.
    """

    def __init__(
        self, problem: AttentionProblem, tile_keys: int, mask: tirx.Buffer | None, threads: Threads
    ) -> None:
        self._p, self._tile_keys, self._mask, self._threads = problem, tile_keys, mask, threads
        self._causal = problem.causal is not MaskedBy.NOTHING
        self._bounded = self._causal or problem.keys % tile_keys != 0
        self.every_block = mask is not None
        self.is_additive = mask is not None and problem.mask_dtype != "bool"

    @property
    def needed(self) -> bool:
        """Whether the first block of a tile is masked: it has the last keys."""
        return self._bounded or self.every_block

    @property
    def guarded(self) -> bool:
        """Whether a row may see no key of a block."""
        return self._causal or self.every_block

    def apply(self, scores: tirx.Buffer, tile: QueryTile, block: Expr) -> None:
        """Emit the masks of block ``block``."""
        t = self._threads
        first = held(block * self._tile_keys + remainder(t.lane, 4) * 2)
        for h in range(2):
            row = held(tile.query + t.warpgroup * 64 + t.warp * 16 + quotient(t.lane, 4) + 8 * h)
            bound = held(self._last_key(row) - first) if self._bounded else None
            for pair in range(2 * h, int(scores.shape[0]), 4):
                elements = self._elements(tile, row, first + pair // 4 * 8)
                for e in range(2):
                    value = scores[pair + e]
                    if elements:
                        value = self._masked(value, elements[e])
                    if bound is not None:
                        lowest = tirx.const(_LOWEST, _FLOAT)
                        value = tirx.Select(const(pair // 4 * 8 + e) <= bound, value, lowest)
                    build.buffer_store(scores, value, [pair + e])

    def _last_key(self, row: Expr) -> Expr:
        """Return the last key that a query sees."""
        last = const(self._p.keys - 1)
        return T.min(row + causal_offset(self._p), last) if self._causal else last

    def _elements(self, tile: QueryTile, row: Expr, key: Expr) -> list[Expr]:
        """Load the mask of two neighbouring keys; keys beyond the end have some other key's."""
        if self._mask is None:
            return []
        p = self._p
        even = p.keys % 2 == 0  # then rows of the mask are aligned to pairs
        keys = [T.min(key + e, const(p.keys - (2 if even else 1))) for e in range(1 if even else 2)]
        places = []
        for one in keys:
            index = [tile.batch, tile.head, T.min(row, const(p.queries - 1)), one]
            places.append(
                [
                    const(0) if int(extent) == 1 else i
                    for extent, i in zip(self._mask.shape, index, strict=True)
                ]
            )
        if not even:
            return [held(self._mask[tuple(place)]) for place in places]
        pair: tirx.Buffer = build.alloc_local([2], p.mask_dtype)
        copy(pair, self._mask.ptr_to(places[0]), 2 * int(dtypes.itemsize(p.mask_dtype)))
        return [pair[0], pair[1]]

    def _masked(self, score: Expr, element: Expr) -> Expr:
        """Return the score with one element of the mask applied."""
        p, lowest = self._p, tirx.const(_LOWEST, _FLOAT)
        if not self.is_additive:
            return tirx.Select(element, score, lowest)
        added = held(T.cast(element, _FLOAT))
        if p.mask_dtype != "float16":  # whose lowest number is far from float32's
            least = tirx.const(_LEAST_FINITE, _FLOAT)
            finite = tirx.Select(added < least, least, added)
            added = tirx.Select(added == lowest, lowest, finite)
        return score * tirx.const(p.scale * LOG2_E, _FLOAT) + added * tirx.const(LOG2_E, _FLOAT)
