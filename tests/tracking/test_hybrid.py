"""A recurrent network with a node that cannot be compiled, from the file to the champion."""

from __future__ import annotations

import json
import subprocess
import sys

import mlflow
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from tests.mlflow_runs import client_of, runs_of

# One run of main and one of pull; tests/stages/test_fallback.py runs such models in the stages.
pytestmark = pytest.mark.slow
_TEXT = """
<ir_version: 8, opset_import: ["": 17]>
hybrid (float[6,2,8] x) => (float[N] y, float[P,Q,R,S] h)
{
  h = LSTM <hidden_size: int = 8, direction: string = "bidirectional"> (x, w, r)
  square = Reshape (h, shape)
  d = Det (square)
  y = Exp (d)
}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory, run_flow, make_store):
    """Return the folder of a finished run of main, and the model."""
    folder = tmp_path_factory.mktemp("hybrid")
    make_store(folder)
    model = onnx.parser.parse_model(_TEXT)
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((2, 32, 8)).astype("float32") / 3,
        "r": rng.standard_normal((2, 32, 8)).astype("float32") / 3,
        "shape": np.array([3, 8, 8], "int64"),
    }
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    path = folder / "hybrid.onnx"
    onnx.save(model, str(path))
    done = run_flow(folder, "main", model=path, strategy="default")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, path, done.stdout


def test_the_champion_equals_its_source(finished, monkeypatch) -> None:
    folder, path, _ = finished
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
    x = np.random.default_rng(1).standard_normal((6, 2, 8)).astype("float32")
    wanted = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    mlflow.set_registry_uri(None)
    model = mlflow.pyfunc.load_model("models:/hybrid@champion")
    for got, expected in zip(model.predict(x), wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_runs_and_version_say_what_runs_where(finished) -> None:
    folder, _, said = finished
    assert "1 node(s) run in ONNX Runtime: d (Det: no converter)" in said
    client = client_of(folder)
    [convert] = runs_of(client, "tags.`tvmopt.stage` = 'convert'")
    assert convert.data.tags["tvmopt.fallback"] == "1 node(s) in 1 segment(s): onnxruntime"
    [evaluate] = runs_of(client, "tags.`tvmopt.stage` = 'evaluate'")
    assert 0 < evaluate.data.metrics["time_compiled_share"] < 1
    version = client.get_model_version_by_alias("hybrid", "champion")
    assert version.tags["fallback"] == "onnxruntime: 1 segment(s)"


def test_what_is_pulled_runs_and_names_the_package(finished, run_flow) -> None:
    folder, _, _ = finished
    done = run_flow(folder, "pull", name="hybrid", output=folder / "pulled")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " onnxruntime\n" in (folder / "pulled" / "README.md").read_text()
    assert json.loads((folder / "pulled" / "model.json").read_text())["segments"] == 1
    hidden = "import sys; sys.modules.update(dict.fromkeys(['tvm', 'tvm_ffi', 'onnx', 'mlflow']));"
    sample = f"{hidden} import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-I", "-c", sample, folder / "pulled" / "sample.py"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "largest deviation from the golden output" in ran.stdout
    assert not (folder / "pulled" / "c").exists()  # ONNX Runtime runs a part: Python only
