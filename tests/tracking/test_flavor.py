"""Tests of the MLflow flavor: save, load, reject, serve."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import numpy as np
import onnxruntime as ort
import pandas as pd
import pytest
import requests
import yaml
from mlflow.exceptions import MlflowException
from onnx import TensorProto, helper, numpy_helper

import tvmopt
from tests.ports import free_port
from tvmopt.errors import ArtifactError
from tvmopt.runtime.metadata import GOLDEN_FILE, LIBRARY_FILE, METADATA_FILE
from tvmopt.tracking import flavor
from tvmopt.tracking.flavor.python_model import CompiledPyFunc

CLIENTS, REQUESTS = 8, 200


@pytest.fixture(scope="module")
def saved(conv_bundle, tmp_path_factory) -> Path:
    """Save the single-input bundle as an MLflow model."""
    path = tmp_path_factory.mktemp("saved") / "model"
    flavor.save_model(conv_bundle, path)
    return path


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    """Return a copy of the saved model, which a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def _flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_mlmodel_file_says_what_the_model_is(saved):
    model = yaml.safe_load((saved / "MLmodel").read_text())
    ours = model["flavors"]["tvmopt"]
    assert {"target", "tvm_version", "host_cpu", "library_sha256", "threads"} <= set(ours)
    assert model["flavors"]["python_function"]["loader_module"] == "tvmopt.tracking.flavor"
    requirements = (saved / "requirements.txt").read_text()
    assert "numpy==" in requirements and "tvm" not in requirements  # native code needs no TVM
    assert json.loads(model["signature"]["inputs"])[0]["name"] == "x"
    assert (saved / "input_example.json").exists()
    assert not [path for path in saved.rglob("__pycache__") if path.is_dir()]
    code = {path.suffix for path in (saved / "code").rglob("*") if path.is_file()}
    # The page of the search's report is HTML, sources in C come with pulled models, and files
    # "__pycache__" have no suffix. The example stays out.
    assert code == {".py", ".html", ".c", ".cpp", ".h", ".txt", ""}


def test_native_and_pyfunc_give_the_golden_output(saved, conv_bundle):
    with np.load(conv_bundle / GOLDEN_FILE) as golden:
        x, want = golden["input_0"], golden["output_0"]
    native = flavor.load_model(str(saved))
    generic = mlflow.pyfunc.load_model(str(saved))
    np.testing.assert_allclose(native(x)[0], want, atol=1e-4)
    np.testing.assert_allclose(generic.predict(x), want, atol=1e-4)
    np.testing.assert_allclose(generic.predict({"x": x}), want, atol=1e-4)


def test_pyfunc_takes_any_number_of_rows_and_tables(tmp_path):
    w = np.arange(6, dtype=np.float32).reshape(3, 2)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    tvmopt.compile(model, "x:1x3", output=tmp_path / "bundle")
    flavor.save_model(tmp_path / "bundle", tmp_path / "saved")
    generic = mlflow.pyfunc.load_model(str(tmp_path / "saved"))
    assert [spec.shape for spec in generic.metadata.signature.inputs] == [(-1, 3)]
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    table = pd.DataFrame(x, columns=["a", "b", "c"])
    for data in (x, x.tolist(), {"x": x}, table):
        got = CompiledPyFunc(flavor.load_model(str(tmp_path / "saved"))).predict(data)
        np.testing.assert_allclose(got, x @ w)
    np.testing.assert_allclose(generic.predict(x), x @ w)
    np.testing.assert_allclose(generic.predict(x[:0]), x[:0] @ w)
    with pytest.raises(MlflowException, match="must have shape"):
        CompiledPyFunc(flavor.load_model(str(tmp_path / "saved"))).predict(x[:, :2])


def test_several_outputs_come_in_onnx_order_and_by_name(two_input_bundle, tmp_path):
    flavor.save_model(two_input_bundle, tmp_path / "model")
    generic = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    model = flavor.load_model(str(tmp_path / "model"))
    names = [spec.name for spec in model.metadata.outputs]
    with np.load(two_input_bundle / GOLDEN_FILE) as golden:
        inputs = {s.name: golden[f"input_{i}"] for i, s in enumerate(model.metadata.inputs)}
        want = [golden[f"output_{i}"] for i in range(len(names))]
    got = generic.predict(inputs)
    assert len(got) == len(want) > 1
    for name, array, expected in zip(names, got, want, strict=True):
        np.testing.assert_allclose(array, expected, atol=1e-4)
        assert got[name] is array


@pytest.mark.parametrize("name", [LIBRARY_FILE, GOLDEN_FILE])
def test_one_flipped_bit_is_refused_before_the_library_is_opened(copy, name, never_opened):
    _flip_bit(copy / "compiled" / name)
    for load in (flavor.load_model, mlflow.pyfunc.load_model):
        with pytest.raises(ArtifactError, match=f"{name} must have sha256 .* but got"):
            load(str(copy))


def test_metadata_rewritten_to_fit_a_changed_library_is_refused(copy, never_opened):
    import hashlib

    compiled = copy / "compiled"
    _flip_bit(compiled / LIBRARY_FILE)
    data = json.loads((compiled / METADATA_FILE).read_text())
    data["library_sha256"] = hashlib.sha256((compiled / LIBRARY_FILE).read_bytes()).hexdigest()
    (compiled / METADATA_FILE).write_text(json.dumps(data))
    with pytest.raises(ArtifactError, match=r"model\.json must have sha256 .* but got"):
        flavor.load_model(str(copy))


def test_another_cpu_is_refused(conv_bundle, tmp_path, never_opened):
    bundle = Path(shutil.copytree(conv_bundle, tmp_path / "bundle"))
    data = json.loads((bundle / METADATA_FILE).read_text())
    data["target"]["cpu_flags"].append("avx1024_future")
    data["target"]["mcpu"] = "futurelake"
    (bundle / METADATA_FILE).write_text(json.dumps(data))
    flavor.save_model(bundle, tmp_path / "model")
    with pytest.raises(ArtifactError, match=r"built for futurelake.*lacks avx1024_future"):
        mlflow.pyfunc.load_model(str(tmp_path / "model"))


@pytest.mark.slow  # test_serve.py asks as many of `-e serve`
def test_served_model_answers_many_clients(example, project_env, root):
    port = free_port()
    argv = [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local"]
    argv += ["-m", "models:/digits-cnn@champion", "-h", "127.0.0.1", "-p", str(port)]
    log = (example.folder / "serve.log").open("w")
    server = subprocess.Popen(
        argv,
        cwd=example.folder,
        env=project_env(example.folder),
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(f"{url}/ping", server)
        image = np.load(root / "tvmopt/examples/digits_eval.npz")["image"]
        session = ort.InferenceSession(
            str(root / "tvmopt/examples/digits_cnn.onnx"), providers=["CPUExecutionProvider"]
        )
        want = [session.run(None, {"image": row[None]})[0] for row in image[:REQUESTS]]

        def client(number: int) -> int:
            right = 0
            with requests.Session() as http:
                for i in range(REQUESTS):
                    sample = (number * 31 + i) % REQUESTS
                    batch = image[sample : sample + 1].tolist()
                    body = {"inputs": batch if i % 2 else {"image": batch}}
                    answer = http.post(f"{url}/invocations", json=body, timeout=60)
                    assert answer.status_code == 200, answer.text
                    got = np.array(answer.json()["predictions"])
                    right += bool(np.allclose(got, want[sample], atol=1e-3))
            return right

        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            assert list(pool.map(client, range(CLIENTS))) == [REQUESTS] * CLIENTS
    finally:
        import os
        import signal

        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        log.close()


def _wait_until_up(url: str, server: subprocess.Popen, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert server.poll() is None, "the server ended"
        try:
            if requests.get(url, timeout=2).status_code == 200:
                return
        except requests.ConnectionError:
            time.sleep(0.2)
    raise AssertionError("the server did not start")
