"""Pareto front of points whose coordinates are minimised."""

from __future__ import annotations

from collections.abc import Sequence


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether ``one`` dominates ``other``: no coordinate is larger, and one is smaller."""
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of the points that no other point dominates, in order."""
    return [
        i for i, point in enumerate(points) if not any(dominates(other, point) for other in points)
    ]
