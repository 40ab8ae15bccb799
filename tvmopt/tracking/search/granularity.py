"""Compare the winner of a search with the same variant at the other granularity."""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.choices import GRANULARITIES
from tvmopt.search.records import ADJUSTED, Record
from tvmopt.search.tried import FAILED, FINISHED
from tvmopt.search.verdict import Finalist
from tvmopt.tracking.report import sentences
from tvmopt.tracking.search.finals import Final


def compare_granularities(winner: Record, records: Sequence[Record], final: Final) -> list[str]:
    """Compare the winner's variant at both granularities, unless it was compiled unmeasured.

    Latencies come from the final round when it has both trials, else from the trials.

    Args:
        winner: Its trial.
        records: All trials of the study.
        final: The last round.
    """
    effort = winner.choice.effort
    if not effort.measures:
        return []
    [other] = [g for g in GRANULARITIES if g != effort.granularity]
    rival = _rival(winner, records, other)
    if rival is None:
        return [sentences.untried_words(effort.granularity, other)]
    if not rival.choice.is_twin(winner.choice):
        other = f"{other} ({rival.choice.effort})"
    if rival.state == FAILED:
        return [sentences.failed_words(effort.granularity, other, rival)]
    measured = {final.trials[f.label].number: f for f in final.finalists}
    one, two = measured.get(winner.number), measured.get(rival.number)
    p50, where = (winner.metrics[ADJUSTED], rival.metrics[ADJUSTED]), sentences.IN_TRIALS
    if one is not None and two is not None:
        p50, where = (one.p50, two.p50), sentences.OVERLAPPING if _overlap(one, two) else ""
    return [sentences.granularity_words(effort.granularity, other, rival, p50, where)]


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


def _overlap(one: Finalist, two: Finalist) -> bool:
    return one.low <= two.high and two.low <= one.high
