"""Share the time among the dtypes, and measure skip sets of each."""

from __future__ import annotations

from tvmopt.choices import LOW_DTYPES
from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.quantize.all_converted import AllConverted
from tvmopt.quantize.analysis import Analysis, Costs, part_of_time
from tvmopt.quantize.report import SkipSet
from tvmopt.quantize.skipsets import Ladder

_LADDER_WEIGHT = {dtype: 1.0 if dtype in HALF_FLOATS else 2.0 for dtype in LOW_DTYPES}


def measured_skip_sets(
    analysis: Analysis,
    costs: Costs,
    starts: dict[str, AllConverted],
    climb_deadline: float,
    deadline: float,
) -> list[SkipSet]:
    """Measure skip sets of each dtype; a dtype that fails with all layers converted gets time."""
    weights = [0.0 if start.verdict.holds else _LADDER_WEIGHT[d] for d, start in starts.items()]
    ladders = []
    for at, (dtype, start) in enumerate(starts.items()):
        share = weights[at] / sum(weights[at:]) if weights[at] else 0.0
        of_dtype = [cost for cost in costs.values() if cost.dtype == dtype]
        ladder = Ladder(of_dtype, start.convert, analysis.judge, analysis.bar, analysis.tell)
        ladder.climb(start.verdict, part_of_time(climb_deadline, share))
        ladders.append(ladder)
    for ladder in ladders:
        ladder.convert_again(climb_deadline)
        ladder.insure(deadline)
        ladder.confirm(deadline)
    return [found for ladder in ladders for found in ladder.sets]
