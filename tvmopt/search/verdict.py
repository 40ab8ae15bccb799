"""Choose the winner among the measured artifacts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

BY_LATENCY, BY_ACCURACY, BY_SIZE, BY_MEDIAN = "latency", "accuracy", "size", "median"
_SAME_SIZE = 0.01
_SAME_DROP = 1e-4


@dataclasses.dataclass(frozen=True)
class Finalist:
    """One artifact, timed interleaved with the others.

    Attributes:
        label: Its name, e.g. ``"trial 7"``.
        p50: Median latency in milliseconds.
        low: Lower end of the median's 95% interval.
        high: Upper end.
        accuracy_drop: Accuracy lost against the float model.
        library_bytes: Size of the library.
    """

    label: str
    p50: float
    low: float
    high: float
    accuracy_drop: float
    library_bytes: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The winner, and what decided.

    Attributes:
        winner: The winner.
        by: What decided: ``BY_LATENCY`` when no other interval overlaps that of the fastest, else
            ``BY_ACCURACY``, ``BY_SIZE`` or ``BY_MEDIAN``.
        equal: The fastest one, and those whose interval overlaps its interval; fastest first.
        runner_up: The fastest of all others; None when there is none.
    """

    winner: Finalist
    by: str
    equal: tuple[Finalist, ...]
    runner_up: Finalist | None


def choose(finalists: Sequence[Finalist]) -> Verdict:
    """Return the fastest; among overlapping intervals the more accurate, then the smaller.

    Accuracies that differ by less than 0.0001 and sizes that differ by less than 1% count as the
    same; what is the same in both is decided by the median after all.
    """
    ordered = sorted(finalists, key=lambda f: f.p50)
    fastest = ordered[0]
    equal = tuple(f for f in ordered if f.low <= fastest.high and fastest.low <= f.high)
    runner_up = next((f for f in ordered if f not in equal), None)
    if len(equal) == 1:
        return Verdict(fastest, BY_LATENCY, equal, runner_up)
    least = min(f.accuracy_drop for f in equal)
    accurate = [f for f in equal if f.accuracy_drop <= least + _SAME_DROP]
    smallest = min(f.library_bytes for f in accurate)
    small = [f for f in accurate if f.library_bytes <= smallest * (1 + _SAME_SIZE)]
    by = BY_MEDIAN
    if len(accurate) < len(equal):
        by = BY_ACCURACY
    elif len(small) < len(accurate):
        by = BY_SIZE
    return Verdict(min(small, key=lambda f: f.p50), by, equal, runner_up)
