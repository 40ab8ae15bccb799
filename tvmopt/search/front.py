"""The Pareto front: what nothing else beats in every respect."""

from __future__ import annotations

from collections.abc import Sequence


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether ``one`` is nowhere larger than ``other`` and somewhere smaller."""
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """Positions of the points, all coordinates to be small, that no other dominates, in order."""
    return [
        i for i, point in enumerate(points) if not any(dominates(other, point) for other in points)
    ]
