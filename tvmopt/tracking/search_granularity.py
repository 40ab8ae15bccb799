"""Compare the winner of a search with the same variant at the other granularity."""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.choices import GRANULARITIES
from tvmopt.search.limits import in_words
from tvmopt.search.plan import FAILED, FINISHED
from tvmopt.search.records import Record
from tvmopt.search.verdict import Finalist
from tvmopt.tracking.finals import Final
from tvmopt.tracking.trial import ADJUSTED

_SAME = 5e-4  # of the latency; what is less would be written as 0.0%


def granularity_words(winner: Record, records: Sequence[Record], final: Final) -> str:
    """Describe the winner's granularity, and the latency at the other one.

    Latencies come from the final round when it has both trials, else from the trials.

    Args:
        winner: Its trial.
        records: All trials of the study.
        final: The last round.

    Returns:
        One sentence; empty when the winner was compiled without measuring.
    """
    effort = winner.choice.effort
    if not effort.measures:
        return ""
    [other] = [g for g in GRANULARITIES if g != effort.granularity]
    rival = _rival(winner, records, other)
    if rival is None:
        return f"tuned by {effort.granularity}; by {other} the same variant was not tried"
    twin = rival.choice.is_twin(winner.choice)
    name = f"by {other}" if twin else f"by {other} ({rival.choice.effort})"
    if rival.state == FAILED:
        why = f"its trial failed ({rival.failure})"
        return f"tuned by {effort.granularity}; {name} the same variant has no latency: {why}"
    measured = {final.trials[f.label].number: f for f in final.finalists}
    one, two = measured.get(winner.number), measured.get(rival.number)
    if one is not None and two is not None:
        ours, theirs = one.p50, two.p50
        where = ", their intervals overlapping" if _overlap(one, two) else ""
    else:
        ours, theirs = winner.metrics[ADJUSTED], rival.metrics[ADJUSTED]
        where = ", measured in their trials"
    text = (
        f"tuned by {effort.granularity}: {ours:.4g} ms; {name} the same variant took "
        f"{theirs:.4g} ms ({_change(ours, theirs)}{where})"
    )
    return text if rival.feasible else f"{text}, and is not feasible: {in_words(rival.violations)}"


def _rival(winner: Record, records: Sequence[Record], granularity: str) -> Record | None:
    """Return the same variant at a granularity: of the same effort, else the fastest; or None."""
    found = [
        r
        for r in records
        if r.choice.variant == winner.choice.variant
        and r.choice.effort.measures
        and r.choice.effort.granularity == granularity
        and r.state in (FINISHED, FAILED)
    ]

    def rank(record: Record) -> tuple[bool, bool, float]:
        twin = record.choice.is_twin(winner.choice)
        return (record.state == FAILED, not twin, record.metrics.get(ADJUSTED, 0.0))

    return min(found, key=rank, default=None)


def _change(ours: float, theirs: float) -> str:
    ratio = theirs / ours
    if abs(ratio - 1) < _SAME:
        return "as fast"
    return f"{abs(ratio - 1):.1%} {'slower' if ratio > 1 else 'faster'}"


def _overlap(one: Finalist, two: Finalist) -> bool:
    return one.low <= two.high and two.low <= one.high
