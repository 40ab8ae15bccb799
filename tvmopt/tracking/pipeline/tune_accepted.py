"""Tune a model once it keeps the accuracy, where layers of a float model may become int8.

Evaluation may refuse a map of dtypes, and another one follows: what was tuned for the first would
be lost. So the top-1 schedules of the cost model are built and evaluated. The rest of the time
budget tunes the network that was accepted, and both builds are timed side by side.
"""

from __future__ import annotations

from tvmopt.choices import MEASURING
from tvmopt.stages.comparison_table import CANDIDATE, WITHOUT_TUNING, read_table
from tvmopt.stages.tune import least_seconds
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.pipeline.steps import StagePipeline

_END_S = 6.0  # of the command, after promotion; and measurements in progress
_OF_TWO = 1.5  # times what the evaluation of one build takes, with its registration
# Stages whose output the tuned build shares.
_SHARED = ("calibrate", "sensitivity", "screen", "convert")


def without_tuning(request: Request) -> Request:
    """Return the request without tuning, where that is to follow; else the request itself."""
    return request.changed(strategy="default") if _tunes_later(request) else request


def with_tuning(
    accepted: StagePipeline, asked: Request, left_s: float, judged_s: float
) -> StagePipeline | None:
    """Return the pipeline of the tuned build; None where none is asked, or time is too short.

    Args:
        accepted: It has run all stages, without tuning, and its model was accepted.
        asked: The request of the command.
        left_s: Seconds that are left of the time budget; infinite without one.
        judged_s: Seconds that evaluation, registration and promotion of the accepted build took.
    """
    if not _tunes_later(asked):
        return None
    tuned = accepted.changed(_SHARED, strategy=asked.tune.strategy)
    tuned.compared = {WITHOUT_TUNING: accepted.run("build"), **accepted.compared}
    if not asked.divided_budget_s:
        return tuned
    # The tuned build compiles what changed, and is evaluated beside the other.
    again_s = accepted.run("build").metrics["compile_s"] + _OF_TWO * judged_s
    seconds = left_s - again_s - _END_S
    if seconds < least_seconds(accepted.run("tune").metrics["tasks"]):
        return None
    tuned.limit_time("tune", seconds)
    return tuned


def tuned_and_untuned_ms(tuned: StagePipeline) -> tuple[float, float]:
    """Return the median latency of the tuned build, and of the one without tuning beside it."""
    rows = {row["variant"]: row for row in read_table(tuned.run("evaluate").folder)}
    mine, other = (float(rows[label]["latency_ms_p50"]) for label in (CANDIDATE, WITHOUT_TUNING))
    return mine, other


def _tunes_later(request: Request) -> bool:
    measures = request.tune.strategy in MEASURING and request.is_measurable
    return measures and request.needs_calibration
