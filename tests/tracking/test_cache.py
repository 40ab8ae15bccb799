"""Tests of the stage cache: what is reused, and what runs again."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.mlflow_runs import runs_of
from tvmopt import digest, host
from tvmopt.choices import GRANULARITIES, STRATEGIES
from tvmopt.errors import ConfigError
from tvmopt.tracking.pipeline import steps as pipeline
from tvmopt.tracking.pipeline.entry import EXAMPLE
from tvmopt.tracking.pipeline.request import Request, make_request
from tvmopt.tracking.store.stage_run import Session, StageOutput

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory, conv_model) -> Path:
    """Write the conv model to a file."""
    path = tmp_path_factory.mktemp("cache") / "net.onnx"
    onnx.save_model(conv_model, str(path))
    return path


def _digests(monkeypatch, request) -> tuple[str, ...]:
    """Return the digests of the stages, without running them."""
    found = []

    def fake(session, planned, **options):
        found.append(planned.digest)
        return StageOutput(planned.name, planned.digest, "", Path(), {}, cached=False)

    monkeypatch.setattr(pipeline, "run_stage", fake)
    pipeline.StagePipeline(None, request).run("evaluate")
    return tuple(found)


def _changed(a: tuple[str, ...], b: tuple[str, ...]) -> list[bool]:
    return [x != y for x, y in zip(a, b, strict=True)]


def test_a_known_output_is_not_run_again(monkeypatch, model):
    ran = []

    def fake(session, planned, **options):
        ran.append(planned.name)
        return StageOutput(planned.name, planned.digest, "", Path(), {}, cached=False)

    monkeypatch.setattr(pipeline, "run_stage", fake)
    request = make_request(model, dtype="int8")
    calibrated = pipeline.StagePipeline(None, request).run("calibrate")
    pipeline.StagePipeline(None, request, [calibrated]).run("convert")
    assert ran == ["calibrate", "convert"]


def test_same_request_has_the_same_digests(monkeypatch, model, tmp_path):
    first = _digests(monkeypatch, make_request(model))
    copied = Path(shutil.copyfile(model, tmp_path / "net.onnx"))  # its path does not matter
    assert _digests(monkeypatch, make_request(copied)) == first
    assert len(set(first)) == 4


def test_one_weight_changes_every_stage(monkeypatch, model, tmp_path):
    changed = onnx.load_model(str(model))
    weight = changed.graph.initializer[0]
    array = onnx.numpy_helper.to_array(weight).copy()
    array.flat[0] = np.nextafter(array.flat[0], np.float32(9))
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    onnx.save_model(changed, str(tmp_path / "net.onnx"))
    a = _digests(monkeypatch, make_request(model))
    b = _digests(monkeypatch, make_request(tmp_path / "net.onnx"))
    assert all(_changed(a, b))


@pytest.mark.parametrize(
    ("change", "which"),
    [
        ({"input_shapes": "x:2x3x8x8"}, [True] * 4),
        ({"target": "skylake-avx512"}, [True] * 4),
        ({"threads": 1}, [True] * 4),
        ({"strategy": "metaschedule", "trials": 4}, [False, True, True, True]),
        ({"name": "other"}, [False, False, True, True]),
        ({"repeats": 50}, [False, False, False, True]),
        ({"max_accuracy_drop": 0.5}, [False] * 4),
        ({"trials": 5}, [False] * 4),  # strategy fast does not use it
        ({"topk": 5}, [False, True, True, True]),
        ({"strategy": "default", "topk": 5}, [False, True, True, True]),
        ({"granularity": "operator"}, [False, True, True, True]),
        ({"dtype": "float16"}, [True] * 4),
        ({"layout": "NHWC"}, [True] * 4),
        ({"skip_layers": "0"}, [True] * 4),
        ({"quantization": "s8s8", "calibration": "entropy"}, [False] * 4),  # not in float32
    ],
)
def test_what_a_parameter_changes(monkeypatch, model, change, which):
    a = _digests(monkeypatch, make_request(model, **{"threads": 2}))
    b = _digests(monkeypatch, make_request(model, **{"threads": 2, **change}))
    assert _changed(a, b) == which


@pytest.mark.parametrize("strategy", ["default", "none"])
def test_granularity_changes_nothing_where_nothing_is_measured(monkeypatch, model, strategy):
    a, b = (make_request(model, strategy=strategy, granularity=g) for g in GRANULARITIES)
    assert _digests(monkeypatch, a) == _digests(monkeypatch, b)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_wrong_granularity_is_refused_by_every_strategy(model, strategy):
    with pytest.raises(ConfigError) as caught:
        make_request(model, strategy=strategy, granularity="op")
    assert str(caught.value) == "granularity must be one of subgraph, operator, but got 'op'"


def test_our_code_changes_every_stage(monkeypatch, model):
    request = make_request(model)
    a = _digests(monkeypatch, request)
    monkeypatch.setattr(digest, "code_digest", lambda: "other")
    assert all(_changed(a, _digests(monkeypatch, request)))


def test_data_changes_conversion_check_and_evaluation(monkeypatch, model, tmp_path):
    for seed in (1, 2):
        array = np.random.default_rng(seed).standard_normal((4, 3, 8, 8)).astype(np.float32)
        np.save(tmp_path / f"{seed}.npy", array)
    one, two = (make_request(model, data=str(tmp_path / f"{seed}.npy")) for seed in (1, 2))
    assert all(_changed(_digests(monkeypatch, one), _digests(monkeypatch, two)))


def _session(example, folder: Path, experiment: str = "") -> Session:
    client = example.client()
    if not experiment:
        experiment = client.create_experiment(f"cache-{folder.name}", folder.as_uri())
    run = client.create_run(experiment)
    return Session(client, experiment, run.info.run_id, {}, True, folder, 2)


def _convert(session: Session, request: Request) -> StageOutput:
    return pipeline.StagePipeline(session, request).run("convert")


def test_damaged_artifacts_are_not_reused(use_example, model, tmp_path, capsys):
    request = make_request(model, name=f"damaged-{tmp_path.name}")
    session = _session(use_example, tmp_path)
    first = _convert(session, request)
    assert _convert(session, request).run_id == first.run_id
    uri = session.client.get_run(first.run_id).info.artifact_uri
    params = Path(uri.removeprefix("file://")) / "params.bin"
    data = bytearray(params.read_bytes())
    data[-1] ^= 1
    params.write_bytes(data)
    assert _convert(session, request).run_id == first.run_id  # its private copy
    (tmp_path / "other command").mkdir()
    session = dataclasses.replace(session, work_dir=tmp_path / "other command")
    again = _convert(session, request)
    assert (again.cached, again.run_id == first.run_id) == (False, False)
    assert "has damaged artifacts: doing it again" in capsys.readouterr().out


def test_a_run_with_a_cached_stage_reports_the_granularity(use_example, tmp_path, monkeypatch):
    client = use_example.client()
    done = runs_of(client, "tags.`tvmopt.stage` = 'tune'")[-1]
    monkeypatch.setattr(host, "fingerprint", lambda: done.data.tags["tvmopt.fingerprint"])
    model, name = ROOT / "tvmopt" / EXAMPLE["model"], EXAMPLE["name"]
    shapes, data = EXAMPLE["input_shapes"], str(ROOT / "tvmopt" / EXAMPLE["data"])
    request = make_request(model, name=name, input_shapes=shapes, data=data, **use_example.asked)
    session = _session(use_example, tmp_path, done.info.experiment_id)
    tuned = pipeline.StagePipeline(session, request).run("tune", own=True)
    tags = client.get_run(session.run_id).data.tags
    assert (tuned.cached, tags["tvmopt.granularity"]) == (True, "subgraph")
    assert "tvmopt.stage" not in tags


def test_no_cache_does_it_again(use_example, model, tmp_path):
    request = make_request(model, name=f"again-{tmp_path.name}")
    session = _session(use_example, tmp_path)
    first = _convert(session, request)
    again = _convert(dataclasses.replace(session, use_cache=False), request)
    assert first.digest == again.digest
    assert first.run_id != again.run_id
