"""A regressor by the mean absolute error, and by a metric of the user's, from data to champion."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.mlflow_runs import client_of, runs_of
from tvmopt.errors import ConfigError
from tvmopt.tracking.pipeline.request import make_request

_TEXT = """
<ir_version: 8, opset_import: ["": 17]>
regressor (float[rows,6] x) => (float[rows,2] y)
{
  y = MatMul (x, w)
}
"""
_OWN = """
import numpy as np

def largest_error(outputs, labels):
    assert outputs.shape == labels.shape, (outputs.shape, labels.shape)
    return np.abs(outputs - labels).max()
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the folder of a regressor, its data and a metric."""
    folder = tmp_path_factory.mktemp("metric")
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((6, 2)).astype("float32")
    model = onnx.parser.parse_model(_TEXT)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, str(folder / "regressor.onnx"))
    x = rng.standard_normal((100, 6)).astype("float32")
    np.savez(folder / "data.npz", x=x, labels=x @ weight + 0.5)
    np.savez(folder / "plain.npz", x=x)
    (folder / "own.py").write_text(_OWN)
    return folder


def _of(files, **values):
    return {
        "model": files / "regressor.onnx", "data": files / "data.npz", "strategy": "default",
        "input_shapes": "rows=4", **values,
    }  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize("own", [True, False], ids=["own", "mean absolute error"])
def test_a_metric_from_data_to_champion(files, run_flow, make_store, tmp_path, own) -> None:
    make_store(tmp_path)
    metric = f"{files / 'own.py'}:largest_error" if own else "mean_absolute_error"
    asked = {"metric": metric} | ({"metric_goal": "smaller"} if own else {})
    done = run_flow(tmp_path, "main", **_of(files, **asked))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{metric} accuracy 0.5000 on 50 samples" in done.stdout
    client = client_of(tmp_path)
    tags = [run.data.tags for run in runs_of(client)]
    assert {one["tvmopt.metric"] for one in tags if "tvmopt.metric" in one} == {metric}
    version = client.get_model_version_by_alias("regressor", "champion")
    assert float(version.tags["heldout_accuracy"]) == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"labels must be integer class indices.*holds float32 \(100, 2\); give a metric"),
        (
            {"metric": "f2"},
            "metric must be one of auto, top1, fidelity, agreement, float_r2",
        ),
        ({"metric": "gone.py:score", "metric_goal": "larger"}, "must name an existing file"),
        ({"metric": "own.py:score"}, "metric_goal must be larger or smaller"),
    ],
)
def test_bad_metric_is_refused_at_once(files, values, message) -> None:
    asked = {name: str(value) for name, value in _of(files, **values).items() if name != "model"}
    with pytest.raises(ConfigError, match=message):
        make_request(files / "regressor.onnx", **asked)


def test_metric_without_labels_is_refused_at_once(files) -> None:
    asked = {"input_shapes": "rows=4", "metric": "r2"}
    with pytest.raises(ConfigError, match="metric 'r2' needs labels, but no data"):
        make_request(files / "regressor.onnx", **asked)
    with pytest.raises(ConfigError, match="metric 'r2' needs labels, but the data holds none"):
        make_request(files / "regressor.onnx", data=str(files / "plain.npz"), **asked)


def test_changed_metric_file_is_another_evaluation(files, tmp_path) -> None:
    own = tmp_path / "own.py"
    digests = []
    for text in (_OWN, _OWN + "# changed\n"):
        own.write_text(text)
        asked = {"input_shapes": "rows=4", "data": str(files / "data.npz")}
        asked |= {"metric": f"{own}:largest_error", "metric_goal": "smaller"}
        digests.append(make_request(files / "regressor.onnx", **asked).evaluate.metric_sha256)
    assert len(set(digests)) == 2
    assert all(digests)
