"""The request of a choice has the stage configurations, and so the digests, of earlier versions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tvmopt.config import ConvertConfig, EvaluateConfig, TuneConfig
from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.errors import ModelError
from tvmopt.search.effort import Effort
from tvmopt.search.space import BASELINE, Choice, Variant
from tvmopt.tracking.pipeline.request import Asked, Request, make_request
from tvmopt.tracking.search.trial import request_for

SHAPES, SPEC = "image:1x3x8x8", resolve_target("skylake-avx512", 2)
TARGET = SPEC.to_dict()
ASKED = Asked.of({"quantization": "s8s8", "topk": 9, "strategy": "none"})
REQUEST = Request("m", Path("m.onnx"), "digest", SHAPES, None, "", SPEC, ASKED)
PLAIN = Choice(Variant("int8", "0,3", "NHWC"), Effort("default"))
BLOCKED = Choice(Variant("bfloat16", "", "NCHW16c"), Effort("fast", 7, "operator"))
MEASURED = Choice(Variant("int8", "", "auto"), Effort("metaschedule", 64))


@pytest.mark.parametrize(
    ("choice", "quantization", "tuning"),
    [
        (BASELINE, "u8s8", {"strategy": "none"}),
        (PLAIN, "s8s8", {"strategy": "default"}),
        (BLOCKED, "u8s8", {"strategy": "fast", "granularity": "operator", "topk": 7}),
        (MEASURED, "s8s8", {"strategy": "metaschedule", "trials": 64}),
    ],
    ids=str,
)
def test_each_stage_is_asked_what_the_choice_says(
    choice, quantization, tuning, monkeypatch
) -> None:
    monkeypatch.setattr(TargetSpec, "missing_on_host", lambda spec: ())  # this machine runs it
    asked, variant = request_for(REQUEST, choice), choice.variant
    assert asked.convert == ConvertConfig(
        SHAPES,
        TARGET,
        quantization,
        layout=variant.layout,
        dtype=variant.dtype,
        keep_dtype=variant.skip_layers,
        is_checked=choice != BASELINE,  # the build stage checks its library
    )
    assert asked.tune == TuneConfig(TARGET, **tuning)
    limits = (10.0, 10.0) if choice == BASELINE else (3.0, 0.0)  # the finals have no such limit
    assert asked.evaluate == EvaluateConfig(
        2,
        time_limit_s=limits[0],
        accuracy_time_s=limits[1],
        starts_reference=choice == BASELINE,  # the same in all trials
    )
    assert asked.calibrate == REQUEST.calibrate
    assert asked.build.plants_non_finite is (choice != BASELINE)


def test_untuned_tvm_is_checked_as_a_candidate_alone() -> None:
    assert not REQUEST.changed(strategy="fast").baseline.plants_non_finite
    untuned = REQUEST.changed(strategy="none")
    assert untuned.baseline == untuned.build and untuned.build.plants_non_finite


@pytest.mark.parametrize(
    ("budget_s", "seconds"), [(0.0, 10.0), (1e6, 10.0), (480.0, 2.4), (10.0, 0.5)]
)
def test_a_baseline_takes_a_share_of_the_budget(budget_s, seconds) -> None:
    asked = request_for(REQUEST, BASELINE, budget_s).evaluate
    assert asked.accuracy_time_s == asked.time_limit_s == pytest.approx(seconds)


@pytest.mark.parametrize(("budget_s", "seconds"), [(0.0, 0.0), (600.0, 12.0), (10.0, 2.0)])
def test_the_accuracy_of_a_trial_takes_a_share_of_the_budget(budget_s, seconds) -> None:
    assert request_for(REQUEST, PLAIN, budget_s).evaluate.accuracy_time_s == seconds


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        # without a budget nothing is divided
        ({"dtype": "auto"}, (0.0, 120.0, 0.0, 0.0, 10.0)),
        ({"dtype": "auto", "time_budget": 150.0}, (27.0, 27.0, 22.5, 9.0, 1.5)),
        ({"dtype": "int8", "time_budget": 150.0}, (27.0, 27.0, 22.5, 9.0, 1.5)),
        # the user's own limits hold
        (
            {"dtype": "auto", "time_budget": 600.0, "calibration_time": 9.0},
            (9.0, 108.0, 90.0, 36.0, 6.0),
        ),
        ({"dtype": "auto", "time_budget": 10.0}, (10.0, 15.0, 10.0, 2.0, 1.0)),
        # all of it is for tuning where nothing is quantised
        ({"dtype": "float32", "time_budget": 150.0}, (0.0, 120.0, 150.0, 0.0, 10.0)),
    ],
    ids=str,
)
def test_a_time_budget_is_divided_where_layers_may_become_int8(asked, limits, monkeypatch) -> None:
    monkeypatch.setattr(TargetSpec, "missing_on_host", lambda spec: ())
    parameters = Asked.of({"strategy": "fast", **asked})
    request = Request("m", Path("m.onnx"), "digest", SHAPES, None, "", SPEC, parameters)
    found = (
        request.calibrate.calibration_time,
        request.sensitivity.sensitivity_time,
        request.tune.time_budget,
        request.evaluate.accuracy_time_s,
        request.evaluate.time_limit_s,
    )
    assert found == pytest.approx(limits)


def test_a_model_without_inputs_is_refused(make_model, tmp_path) -> None:
    node = helper.make_node("Relu", ["c"], ["y"], name="relu")
    model = make_model([node], {}, {"y": ("float32", [2])}, {"c": np.float32([-1, 2])})
    onnx.save(model, str(tmp_path / "m.onnx"))
    with pytest.raises(ModelError, match="must have an input to be tuned, but its graph has none"):
        make_request(tmp_path / "m.onnx")
