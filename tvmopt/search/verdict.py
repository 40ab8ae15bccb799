"""Choose the winner among the measured artifacts, and explain the choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


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
    """The winner, and the reason in one sentence."""

    winner: Finalist
    reason: str


_SAME_SIZE = 0.01
_SAME_DROP = 1e-4


def choose(finalists: Sequence[Finalist]) -> Verdict:
    """Return the fastest; among overlapping intervals the more accurate, then the smaller.

    Accuracies that differ by less than 0.0001 and sizes that differ by less than 1% count as the
    same; what is the same in both is decided by the median after all.
    """
    fastest = min(finalists, key=lambda f: f.p50)
    equal = [f for f in finalists if f.low <= fastest.high and fastest.low <= f.high]
    others = [f for f in finalists if f not in equal]
    if len(equal) == 1:
        reason = f"{fastest.label} is the fastest: p50 {_interval(fastest)}"
        if others:
            second = min(others, key=lambda f: f.p50)
            reason += f", against {_interval(second)} of {second.label}, the next"
        return Verdict(fastest, reason)
    least = min(f.accuracy_drop for f in equal)
    accurate = [f for f in equal if f.accuracy_drop <= least + _SAME_DROP]
    smallest = min(f.library_bytes for f in accurate)
    small = [f for f in accurate if f.library_bytes <= smallest * (1 + _SAME_SIZE)]
    winner = min(small, key=lambda f: f.p50)
    names = ", ".join(f"{f.label} ({_interval(f)})" for f in sorted(equal, key=lambda f: f.p50))
    if len(accurate) < len(equal):
        why = f"loses the least accuracy ({winner.accuracy_drop:+.4f})"
    elif len(small) < len(accurate):
        why = f"has the smallest library ({winner.library_bytes / 1e6:.2f} MB)"
    else:
        why = "has the smallest median, accuracy and size being the same"
    return Verdict(
        winner, f"equally fast, their intervals overlapping: {names}; {winner.label} {why}"
    )


def _interval(one: Finalist) -> str:
    return f"{one.p50:.4g} ms ({one.low:.4g} to {one.high:.4g})"
