"""The entry point ``main`` tunes what keeps the accuracy, where layers may become int8."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.mlflow_runs import runs_of
from tvmopt.errors import LimitError, PromotionRefusedError
from tvmopt.tracking.pipeline import workflow
from tvmopt.tracking.pipeline.request import Request, make_request
from tvmopt.tracking.pipeline.steps import StagePipeline
from tvmopt.tracking.pipeline.tune_accepted import (
    tuned_and_untuned_ms,
    with_tuning,
    without_tuning,
)

MODEL = Path(__file__).parents[2] / "tvmopt" / "examples" / "digits_cnn.onnx"
INT8 = {"dtype": "int8", "threads": 1, "repeats": 5, "topk": 1}


def test_the_faster_build_becomes_champion(store_client, monkeypatch, capsys) -> None:
    def fail(tuned: StagePipeline) -> tuple[float, float]:
        raise LimitError("tune was stopped: it may take 1 s")

    monkeypatch.setattr(workflow, "tuned_and_untuned_ms", fail)
    first = workflow.main(**INT8)
    assert (first.version, first.champion) == ("1", True)
    assert "failed, version 1 stays: tune was stopped" in capsys.readouterr().out

    def slower(tuned: StagePipeline) -> tuple[float, float]:
        mine, other = tuned_and_untuned_ms(tuned)
        return max(mine, other), min(mine, other)

    monkeypatch.setattr(workflow, "tuned_and_untuned_ms", slower)
    second = workflow.main(**INT8)
    assert (second.version, second.champion) == ("1", True)
    assert "ms without tuning: version 1 stays" in capsys.readouterr().out

    monkeypatch.setattr(workflow, "tuned_and_untuned_ms", lambda tuned: slower(tuned)[::-1])
    result = workflow.main(**INT8)
    assert (result.version, result.champion) == ("2", True)
    assert "evaluate" in result.reused
    lines = [line.split("  ")[0] for line in result.table.splitlines()]
    assert lines[0] == "variant"
    assert {"without tuning", "untuned TVM", "ONNX Runtime fp32"} < set(lines)
    assert "version 2 has alias champion" in capsys.readouterr().out
    versions = [store_client.get_model_version(result.name, number) for number in ("1", "2")]
    assert [version.tags["strategy"] for version in versions] == ["default", "fast"]
    assert len(runs_of(store_client, "tags.`tvmopt.stage` = 'tune'")) == 2


def test_a_tuned_build_that_is_refused_leaves_the_accepted_one(
    store_client, monkeypatch, capsys
) -> None:
    judged = []

    def check(request: Request, measured: object) -> None:
        judged.append(request.tune.strategy)
        if judged[-1] == "fast":
            raise PromotionRefusedError("the tuned build loses too much")

    monkeypatch.setattr(workflow, "_check_bar", check)
    monkeypatch.setattr(workflow, "tuned_and_untuned_ms", lambda tuned: (1.0, 2.0))
    result = workflow.main(**INT8)
    assert judged == ["default", "fast"]
    assert (result.version, result.champion) == ("1", True)
    assert "the tuned build loses too much" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ({"dtype": "int8"}, "default"),
        ({"dtype": "auto", "time_budget": 60.0}, "default"),
        ({"dtype": "int8", "strategy": "metaschedule"}, "default"),
        ({"dtype": "int8", "strategy": "none"}, "none"),
        ({"dtype": "bfloat16"}, "fast"),
        ({"dtype": "int8", "target": "cortex-a76"}, "fast"),  # nothing here can run it
    ],
)
def test_tuning_comes_last_where_maps_may_be_refused(asked: dict[str, Any], first: str) -> None:
    assert without_tuning(_request(**asked)).tune.strategy == first


@pytest.mark.parametrize(("left_s", "seconds"), [(48.0, 18.0), (39.0, None), (0.0, None)])
def test_tuning_has_the_rest_of_the_budget(left_s: float, seconds: float | None) -> None:
    asked = _request(dtype="int8", time_budget=150.0)
    tuned = with_tuning(_accepted(asked, tasks=20), asked, left_s, 12.0)
    # compilation 6 s, evaluation of two builds 18 s, end 6 s; 20 tasks of half a second
    assert (tuned and tuned._limits_s["tune"]) == seconds
    if tuned is not None:
        assert tuned.request.tune == asked.tune
        assert list(tuned.compared) == ["without_tuning", "untuned_tvm"]
        assert [output.stage for output in tuned.outputs] == ["calibrate", "convert"]
        assert tuned._limited("tune", asked.tune).time_budget == seconds
        assert tuned._limited("build", asked.build) == asked.build


def test_without_a_budget_nothing_limits_tuning() -> None:
    asked = _request(dtype="int8")
    tuned = with_tuning(_accepted(asked, tasks=500), asked, float("inf"), 9.0)
    assert tuned is not None
    assert tuned._limited("tune", asked.tune) == asked.tune


def _request(**asked: Any) -> Request:
    given = {"target": "host", **asked}
    return make_request(MODEL, input_shapes="image:1x1x8x8", threads=1, **given)


def _accepted(asked: Request, tasks: int) -> StagePipeline:
    """Return a pipeline that has run all stages without tuning."""
    seconds = {"calibrate": 30.0, "convert": 9.0, "tune": 1.0, "build": 1.0, "evaluate": 4.0}
    known: list[Any] = [
        SimpleNamespace(stage=stage, busy_s=busy, metrics={"tasks": float(tasks), "compile_s": 6.0})
        for stage, busy in seconds.items()
    ]
    pipeline = StagePipeline(None, without_tuning(asked), known)  # type: ignore[arg-type]
    pipeline.compared["untuned_tvm"] = known[0]
    return pipeline
