"""How long a trial of a search may tune, so that it can build and evaluate in the time left."""

from __future__ import annotations

from collections.abc import Mapping

from tvmopt.tracking.pipeline.request import Request

# Of the seconds of a conversion with its check: what a build takes, which compiles what is tuned.
_BUILD = 0.5
# Contenders whose latency is measured, and seconds of evaluation beside latency and accuracy.
_CONTENDERS, _EVALUATION_S = 2, 5.0
# Seconds of tuning that a layer needs at most: 1.5 to 3 in benchmarks/results/2026-11-30-amx-12.md.
_LAYER_S = 4.0


def tuning_seconds(left_s: float, converted: Mapping[str, float], request: Request) -> float:
    """Return most seconds for tuning; 0 for no limit, where the time left is enough.

    Args:
        left_s: Seconds that a stage may take; 0 for no limit.
        converted: Metrics of the convert stage.
        request: Of the trial.
    """
    if not left_s:
        return 0.0
    evaluate = request.evaluate
    after_s = _BUILD * converted["convert_s"] + _EVALUATION_S
    after_s += evaluate.accuracy_time_s + _CONTENDERS * evaluate.time_limit_s
    seconds = max(1.0, left_s - after_s)
    return 0.0 if seconds >= _LAYER_S * converted["layers"] else seconds
