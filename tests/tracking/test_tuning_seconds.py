"""A trial of a search tunes so long that it can build and evaluate in the time left."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tvmopt.tracking.pipeline.request import make_request
from tvmopt.tracking.pipeline.steps import StagePipeline
from tvmopt.tracking.search.tuning_seconds import tuning_seconds

MODEL = Path(__file__).parents[2] / "tvmopt" / "examples" / "digits_cnn.onnx"
# 10 s of conversion, of which a build takes 5; 40 s of tuning at most.
CONVERTED = {"convert_s": 10.0, "layers": 10.0}


def _request(**asked):
    return make_request(MODEL, input_shapes="image:1x1x8x8", threads=1, target="host", **asked)


@pytest.mark.parametrize(
    ("left_s", "seconds"),
    [
        (0.0, 0.0),  # no limit
        (1000.0, 0.0),
        (64.0, 0.0),
        (63.9, 39.9),  # 5 s for the build, 8 for the accuracy, 2 x 3 for latencies, 5 for the rest
        (30.0, 6.0),
        (10.0, 1.0),
    ],
)
def test_build_and_evaluation_follow_in_the_time_left(left_s: float, seconds: float) -> None:
    evaluate = SimpleNamespace(accuracy_time_s=8.0, time_limit_s=3.0)
    request = SimpleNamespace(evaluate=evaluate)
    assert tuning_seconds(left_s, CONVERTED, request) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("asked", "bound_s", "limit_s"),
    [({}, 0.0, 0.0), ({}, 7.0, 7.0), ({"time_budget": 5.0}, 7.0, 5.0)],
)
def test_tuning_without_a_time_budget_is_bounded_and_its_digest_says_so(
    asked: dict[str, float], bound_s: float, limit_s: float
) -> None:
    """Nobody takes what was tuned for a shorter time for the whole."""
    request = _request(strategy="fast", **asked)
    session = SimpleNamespace(use_cache=False)

    def planned(seconds: float):
        pipeline = StagePipeline(session, request)
        pipeline.bound_tuning(seconds)
        return {plan.stage: plan for plan, _ in pipeline.plan("build")}

    plans, others = planned(bound_s), planned(0.0)
    assert plans["tune"].config.time_budget == limit_s
    assert plans["convert"].digest == others["convert"].digest
    is_bounded = bool(bound_s and not asked)
    assert (plans["tune"].digest != others["tune"].digest) == is_bounded
