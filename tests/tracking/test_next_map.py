"""``dtype=auto`` goes on with a more accurate map of dtypes where the first one is refused."""

from __future__ import annotations

import csv
from pathlib import Path
from unittest import mock

import onnx
import pytest
from mlflow.tracking import MlflowClient

from tests.mlflow_runs import runs_of
from tvmopt.errors import PromotionRefusedError
from tvmopt.tracking.pipeline import workflow
from tvmopt.tracking.pipeline.next_map import with_next_map
from tvmopt.tracking.pipeline.request import make_request
from tvmopt.tracking.pipeline.steps import StagePipeline


@pytest.fixture
def client(tmp_path, make_store, monkeypatch):
    """Point MLflow in this process at a store of this test."""
    import mlflow

    uri = make_store(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    yield MlflowClient(uri, uri)
    mlflow.set_tracking_uri(None)
    mlflow.set_registry_uri(None)


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


def test_a_refused_map_is_followed_by_a_more_accurate_one(client, monkeypatch, capsys, tmp_path):
    drops = _refuse(monkeypatch, 1)
    result = workflow.main(dtype="auto", strategy="default", threads=1, repeats=5)
    assert (result.version, result.champion) == ("2", True)
    assert len(drops) == 2
    out = capsys.readouterr().out
    assert out.count("the next map of dtypes loses at most half as much") == 1
    assert "build 1 loses too much" in out
    first, second = runs_of(client, "tags.`tvmopt.stage` = 'convert'")[::-1]
    numbers = [run.data.tags.get("tvmopt.dtype_map") for run in (first, second)]
    assert numbers[0] is None and int(numbers[1]) >= 1
    versions = [client.get_model_version(result.name, number) for number in ("1", "2")]
    assert [version.tags.get("dtype_map") for version in versions] == numbers
    int8 = [_int8_layers(client, run, tmp_path) for run in (first, second)]
    assert int8[0] > int8[1]
    assert len(runs_of(client, "tags.`tvmopt.stage` = 'sensitivity'")) == 1  # not made again


@pytest.mark.slow
def test_where_every_map_is_refused_the_last_refusal_is_the_error(client, monkeypatch):
    drops = _refuse(monkeypatch, 99)
    with pytest.raises(PromotionRefusedError, match=r"build \d loses too much"):
        workflow.main(dtype="auto", strategy="default", threads=1, repeats=5)
    assert 2 <= len(drops) <= 4


def test_a_dtype_that_the_user_chose_is_not_changed(conv_model, tmp_path):
    onnx.save_model(conv_model, str(tmp_path / "m.onnx"))
    request = make_request(tmp_path / "m.onnx", dtype="int8", threads=1)
    pipeline = StagePipeline(mock.Mock(), request)
    assert with_next_map(pipeline) is None
