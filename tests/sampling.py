"""The mark ``sample(n)``: by default n cases of a parametrised test run, the others are slow."""

from __future__ import annotations

from collections import defaultdict

import pytest

_LEFT_OUT = ("slow", "gpu")


def mark_slow(items: list[pytest.Item]) -> None:
    """Mark cases of each function with the mark ``sample(n)`` slow, all but n.

    The n cases are evenly spaced, the first and the last among them: neighbours mostly share the
    parameter that varies slowest. A case that is slow, or needs a GPU, by itself is not counted.
    The nearest mark counts: a function's before its module's. Only collected cases are seen, so a
    case that is named on the command line runs.

    Raises:
        pytest.UsageError: n is not a positive integer.
    """
    cases = defaultdict(list)
    for item in items:
        marked = item.get_closest_marker("sample")
        if marked and not any(item.get_closest_marker(name) for name in _LEFT_OUT):
            cases[item.nodeid.partition("[")[0], _size(marked, item)].append(item)
    for (_, size), found in cases.items():
        kept = evenly_spaced(len(found), size)
        for place, item in enumerate(found):
            if place not in kept:
                item.add_marker(pytest.mark.slow)


def evenly_spaced(count: int, size: int) -> set[int]:
    """Return ``size`` of the numbers below ``count``, or all: the first, the last, and between."""
    if size >= count:
        return set(range(count))
    return {place * (count - 1) // max(size - 1, 1) for place in range(size)}


def _size(marked: pytest.Mark, item: pytest.Item) -> int:
    match marked.args:
        case (int(size),) if size > 0 and not marked.kwargs:
            return size
    raise pytest.UsageError(f"the mark sample takes a number of cases, as sample(2): {item.nodeid}")
