"""Prefer candidates that pack a weight as another kernel does, so that it is stored once."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.rank import Ranking

#: Attribute of a function: the tile that its weight is packed for (:attr:`Hint.packed_tile`).
PACKED_TILE = "tvmopt.packed_tile"

# A candidate that shares the packed weight may take this much longer, as predicted: less than the
# cost model's own error.
_SHARED_COST = 1.1


def tile_costs(ranking: Ranking, spare_cycles: float) -> dict[str, float]:
    """Return the tiles of candidates about as fast as the top-1, with their predicted ratio.

    Args:
        ranking: The ranking of a function.
        spare_cycles: Cycles that a candidate may be slower in any case.
    """
    if not ranking.candidates:
        return {}
    best = ranking.candidates[0].cycles
    most = max(_SHARED_COST * best, best + spare_cycles)
    found: dict[str, float] = {}
    for one in ranking.candidates:
        if one.hint.packed_tile and one.cycles <= most:
            ratio = one.cycles / best
            found[one.hint.packed_tile] = min(ratio, found.get(one.hint.packed_tile, ratio))
    return found


def prefer_packing(ranking: Ranking, tile: str) -> Ranking:
    """Return the candidates that pack for a tile; all if none does."""
    alike = tuple(one for one in ranking.candidates if one.hint.packed_tile == tile)
    return dataclasses.replace(ranking, candidates=alike) if alike else ranking
