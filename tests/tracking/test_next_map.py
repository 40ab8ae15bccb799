"""``dtype=auto`` goes on with a more accurate map of dtypes where the first one is refused."""

from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import onnx
import pytest

from tests.mlflow_runs import runs_of
from tvmopt.errors import PromotionRefusedError
from tvmopt.quantize.dtype_map import DtypeMap
from tvmopt.tracking.pipeline import next_map, workflow
from tvmopt.tracking.pipeline.next_map import with_first_map, with_next_map
from tvmopt.tracking.pipeline.request import make_request
from tvmopt.tracking.pipeline.steps import StagePipeline

DIGITS = Path(__file__).parents[2] / "tvmopt" / "examples" / "digits_cnn.onnx"


def _unlimited():
    return math.inf


def _refuse(monkeypatch, times):
    """Let evaluation refuse the first ``times`` builds; return the drops that it saw."""
    drops = []

    def check(request, measured):
        drops.append(measured.metrics["accuracy_drop"])
        if len(drops) <= times:
            raise PromotionRefusedError(f"build {len(drops)} loses too much")

    monkeypatch.setattr(workflow, "_check_bar", check)
    return drops


def _int8_layers(client, run, folder):
    path = client.download_artifacts(run.info.run_id, "layers.csv", str(folder))
    with Path(path).open(newline="") as file:
        return sum(row["dtype"] == "int8" for row in csv.DictReader(file))


def test_a_refused_map_is_followed_by_a_more_accurate_one(
    store_client, monkeypatch, capsys, tmp_path
):
    drops = _refuse(monkeypatch, 1)
    result = workflow.main(dtype="auto", strategy="default", threads=1, repeats=5)
    assert (result.version, result.champion) == ("2", True)
    assert len(drops) == 2
    out = capsys.readouterr().out
    assert out.count("the next map of dtypes is expected to lose less") == 1
    assert "build 1 loses too much" in out
    first, second = runs_of(store_client, "tags.`tvmopt.stage` = 'convert'")[::-1]
    numbers = [run.data.tags.get("tvmopt.dtype_map") for run in (first, second)]
    assert numbers[0] is None and int(numbers[1]) >= 1
    versions = [store_client.get_model_version(result.name, number) for number in ("1", "2")]
    assert [version.tags.get("dtype_map") for version in versions] == numbers
    int8 = [_int8_layers(store_client, run, tmp_path) for run in (first, second)]
    assert int8[0] > int8[1]
    assert len(runs_of(store_client, "tags.`tvmopt.stage` = 'sensitivity'")) == 1  # not made again


@pytest.mark.slow
def test_where_every_map_is_refused_the_last_refusal_is_the_error(store_client, monkeypatch):
    drops = _refuse(monkeypatch, 99)
    with pytest.raises(PromotionRefusedError, match=r"build \d loses too much"):
        workflow.main(dtype="auto", strategy="default", threads=1, repeats=5)
    assert 2 <= len(drops) <= 4


def test_a_dtype_that_the_user_chose_is_not_changed(conv_model, tmp_path):
    onnx.save_model(conv_model, str(tmp_path / "m.onnx"))
    request = make_request(tmp_path / "m.onnx", dtype="int8", threads=1)
    pipeline = StagePipeline(mock.Mock(), request)
    assert with_next_map(pipeline, PromotionRefusedError("", drop=0.02), _unlimited) is None


def test_a_drop_on_held_out_samples_counts_with_that_of_evaluation(monkeypatch):
    """0.0000 of 100 and 0.0333 of 60 are 0.0125 together."""
    metrics = {"accuracy_drop": 0.0, "accuracy_samples": 100.0}
    monkeypatch.setattr(StagePipeline, "run", lambda *_: SimpleNamespace(metrics=metrics))
    pipeline = StagePipeline(None, None)
    refused = PromotionRefusedError("", drop=2 / 60, samples=60)
    assert next_map._drop(pipeline, refused) == pytest.approx(2 / 160)
    assert next_map._drop(pipeline, PromotionRefusedError("", drop=0.02)) == 0.02


@pytest.mark.parametrize(
    ("heldout", "samples", "limit"),
    [
        (0.0107, 60, 0.01 * 90 / 107),
        (0.0200, 60, 0.007),
        (0.0107, 0, 0.01),  # refused by evaluation
        (0.0080, 60, 0.01),  # refused for another reason
    ],
)
def test_emulation_keeps_a_smaller_limit_where_held_out_samples_lose_more(
    monkeypatch, heldout, samples, limit
):
    metrics = {"accuracy_drop": 0.009}
    monkeypatch.setattr(StagePipeline, "run", lambda *_: SimpleNamespace(metrics=metrics))
    pipeline = StagePipeline(None, SimpleNamespace(max_accuracy_drop=0.01))
    refused = PromotionRefusedError("", drop=heldout, samples=samples)
    assert next_map._screen_limit(pipeline, refused) == pytest.approx(limit)


def test_the_screen_stage_has_the_limit_of_the_pipeline():
    shapes = {"input_shapes": "image:1x1x8x8", "target": "host", "threads": 1}
    request = make_request(DIGITS, dtype="auto", max_accuracy_drop=0.01, **shapes)
    pipeline = StagePipeline(mock.Mock(use_cache=False), request)
    for limit, found in ((None, 0.01), (0.008, 0.008)):
        pipeline.screen_limit = limit
        plans = {plan.stage: plan.config for plan, _ in pipeline.plan("screen")}
        assert plans["screen"].max_accuracy_drop == found


@pytest.mark.parametrize(
    ("drop", "number"),
    [(0.012, 1), (0.02, 1), (0.05, 2), (0.0, 1)],  # 0: refused for another reason
)
def test_the_next_map_follows_from_the_drop(monkeypatch, drop, number):
    plain = DtypeMap((), (), 9.0, 0.0, 1.0, None, 0.0, 9, True)
    maps = [plain] + [
        dataclasses.replace(plain, layers=(0,), predicted_s=1.0 + n, predicted_loss=0.01 * 0.5**n)
        for n in range(3)
    ]
    found = mock.Mock(dtype_maps=maps)
    monkeypatch.setattr(next_map, "read_sensitivity", lambda folder: found)
    stages = ("calibrate", "sensitivity", "convert", "evaluate")
    known = [SimpleNamespace(stage=stage, folder=None) for stage in stages]
    request = SimpleNamespace(
        asked=SimpleNamespace(conversion=SimpleNamespace(dtype="auto")),
        convert=SimpleNamespace(dtype_map=0),
        needs_sensitivity=True,
        max_accuracy_drop=0.01,
        changed=lambda dtype_map: dtype_map,
    )
    monkeypatch.setattr(next_map, "_screened", lambda pipeline, left_s: pipeline)
    refused = PromotionRefusedError("", drop=drop)
    following = with_next_map(StagePipeline(None, request, known), refused, _unlimited)
    assert following.request == number
    assert not following.takes_faster_maps
    assert [output.stage for output in following.outputs] == ["calibrate", "sensitivity"]


@pytest.mark.parametrize(
    ("asked", "faster", "least"), [(0, True, -99), (0, False, 0), (2, True, 2)]
)
def test_no_faster_map_is_emulated_after_a_refused_one(asked, faster, least):
    shapes = {"input_shapes": "image:1x1x8x8", "target": "host", "threads": 1}
    request = make_request(DIGITS, dtype="auto", dtype_map=asked, **shapes)
    pipeline = StagePipeline(mock.Mock(use_cache=False), request)
    pipeline.takes_faster_maps = faster
    plans = {plan.stage: plan.config for plan, _ in pipeline.plan("screen")}
    assert (plans["screen"].first, plans["screen"].least) == (asked, least)
    assert plans["screen"].time_limit_s == 0.5 * plans["sensitivity"].sensitivity_time


@pytest.mark.parametrize(("asked", "number"), [(0, 0), (0, 2), (1, 1), (1, 3)])
def test_the_map_that_the_screen_stage_chose_is_built(monkeypatch, asked, number):
    ran = []

    def run(pipeline, name):
        ran.append((name, pipeline.request.convert.dtype_map))
        return SimpleNamespace(stage=name, metrics={"dtype_map": float(number)})

    def request(dtype_map):
        return SimpleNamespace(
            asked=SimpleNamespace(conversion=SimpleNamespace(dtype="auto", dtype_map=dtype_map)),
            convert=SimpleNamespace(dtype_map=dtype_map),
            needs_sensitivity=True,
            changed=request,
        )

    monkeypatch.setattr(StagePipeline, "run", run)
    known = [SimpleNamespace(stage=s) for s in ("calibrate", "sensitivity", "screen", "convert")]
    pipeline = StagePipeline(None, request(asked), known)
    following = with_first_map(pipeline, _unlimited)
    assert ran == [("screen", asked)]
    assert following.request.convert.dtype_map == number
    kept = [output.stage for output in following.outputs]
    assert kept == [output.stage for output in known][: None if number == asked else 3]


def test_without_maps_nothing_is_screened(conv_model, tmp_path):
    onnx.save_model(conv_model, str(tmp_path / "m.onnx"))
    pipeline = StagePipeline(mock.Mock(), make_request(tmp_path / "m.onnx", threads=1))
    assert with_first_map(pipeline, _unlimited) is pipeline


@pytest.mark.parametrize(
    ("left_s", "layers", "seconds"),
    [(100.0, 50, 53.125), (80.0, 100, 17.0), (60.0, 100, 9.45), (-5.0, 20, 9.45)],
)
def test_the_screen_stage_has_time_that_conversion_does_not_need(
    monkeypatch, left_s, layers, seconds
):
    """15 s and 0.45 s a layer are kept; 0.7 of its share of the budget, of 150 s, is granted."""
    request = make_request(
        DIGITS, dtype="auto", time_budget=150.0, input_shapes="image:1x1x8x8", threads=1
    )
    pipeline = StagePipeline(mock.Mock(), request)
    monkeypatch.setattr(StagePipeline, "run", lambda *_: SimpleNamespace(folder=None))
    costs = [SimpleNamespace(index=index) for index in range(layers)] * 3
    monkeypatch.setattr(next_map, "read_sensitivity", lambda folder: SimpleNamespace(costs=costs))
    assert next_map._screen_s(pipeline, lambda: left_s) == pytest.approx(seconds)


def test_the_time_limit_of_a_stage_leaves_its_digest():
    request = make_request(
        DIGITS, dtype="auto", time_budget=150.0, input_shapes="image:1x1x8x8", threads=1
    )
    pipeline = StagePipeline(mock.Mock(use_cache=False), request)
    pipeline.limit_time("screen", 5.0)
    (planned, _), *_ = [plan for plan in pipeline.plan("screen") if plan[0].stage == "screen"]
    assert planned.config.time_limit_s == 13.5
    assert pipeline._limited("screen", planned.config).time_limit_s == 5.0
    assert pipeline._limited("convert", request.convert) == request.convert
