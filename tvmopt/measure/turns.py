"""Rotating order of competitors in interleaved timing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def rotated(items: Sequence[Item], turn: int) -> list[Item]:
    """Return ``items`` rotated by ``turn``, so that each one comes first in turn.

    Before -> after, on turn 1: ``a, b, c`` -> ``b, c, a``.
    """
    start = turn % max(1, len(items))
    return [*items[start:], *items[:start]]
