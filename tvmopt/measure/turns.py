"""In which order contenders take turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def rotated(items: Sequence[Item], turn: int) -> list[Item]:
    """``items`` beginning with another one on each turn, so that none is always the first.

    Before -> after, on turn 1: ``a, b, c`` -> ``b, c, a``.
    """
    start = turn % max(1, len(items))
    return [*items[start:], *items[:start]]
