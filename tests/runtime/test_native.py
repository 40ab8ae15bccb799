"""Native libraries: no TVM, threads, forks, unloading, the environment variable."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tvmopt.errors import ConfigError
from tvmopt.runtime import aligned_empty, load
from tvmopt.runtime.native import ALIGNMENT_BYTES, SPIN_VARIABLE, address
from tvmopt.tracking import flavor

ROOT = Path(__file__).parents[2]


def _count(kind: str) -> int:
    """Return the number of threads or descriptors of this process."""
    return len(list(Path("/proc/self", kind).iterdir()))


_X = np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)


# As in a container with MLflow and NumPy only: neither the modules nor their metadata are there.
_NO_TVM = """
import importlib.machinery, importlib.metadata as metadata
HIDDEN = {"tvm", "tvm_ffi", "onnx", "onnxruntime", "optuna"}
version, find_spec = metadata.version, importlib.machinery.PathFinder.find_spec
def hidden_version(name):
    if name.startswith("apache-tvm"):
        raise metadata.PackageNotFoundError(name)
    return version(name)
def hidden_spec(name, path=None, target=None):
    return None if name.split(".")[0] in HIDDEN else find_spec(name, path, target)
metadata.version = hidden_version
importlib.machinery.PathFinder.find_spec = hidden_spec
"""


@pytest.fixture
def without_tvm(tmp_path, run_python):
    """Run Python where there is no TVM."""
    (tmp_path / "sitecustomize.py").write_text(_NO_TVM)
    return lambda *args: run_python(*args, PYTHONPATH=f"{tmp_path}:{ROOT}")


def test_a_native_model_runs_without_tvm(conv_bundle, without_tvm) -> None:
    code = (
        "from pathlib import Path\n"
        "from tvmopt.runtime import load\n"
        f"folder = Path({str(conv_bundle)!r})\n"
        "print(load(folder).check_golden(folder) < 1e-4)"
    )
    done = without_tvm("-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


def test_a_native_model_of_mlflow_runs_without_tvm(conv_bundle, without_tvm, tmp_path) -> None:
    flavor.save_model(conv_bundle, tmp_path / "saved")
    code = (
        "import mlflow, numpy as np\n"
        f"model = mlflow.pyfunc.load_model({str(tmp_path / 'saved')!r})\n"
        "print(model.predict(np.zeros((1, 3, 8, 8), np.float32)).shape)\n"
        "import tvmopt; print(tvmopt.__file__)"
    )
    done = without_tvm("-c", code)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout  # it ran the code that the model carries


@pytest.mark.parametrize(
    "words",
    [
        ("-c", "import tvmopt; tvmopt.compile('model.onnx')"),
        ("-m", "flows.pull", "--name", "m"),
        ("-m", "tvmopt", "pull", "--name", "m"),
    ],
    ids=" ".join,
)
def test_the_rest_says_that_it_needs_tvm(words, without_tvm) -> None:
    done = without_tvm(*words)
    assert done.returncode == 1
    assert "apache-tvm must be installed, but it is not; run: pip install" in done.stderr


def test_models_are_unloaded(conv_bundle) -> None:
    """Libraries, worker threads and descriptors of models that are gone do not pile up."""

    def used() -> tuple[int, int, int]:
        mapped = Path("/proc/self/maps").read_text().count("memfd:model.so")
        return mapped, _count("task"), _count("fd")

    load(conv_bundle)(_X)
    before = used()
    for _ in range(20):
        load(conv_bundle)(_X)
    assert all(now <= then for now, then in zip(used(), before, strict=True))


def test_threads_that_end_leave_no_workers(conv) -> None:
    conv(_X)
    before = _count("task")
    for _ in range(10):
        thread = threading.Thread(target=conv, args=(_X,))
        thread.start()
        thread.join()
    deadline = time.monotonic() + 10
    while _count("task") > before and time.monotonic() < deadline:  # threads end after join
        time.sleep(0.01)
    assert _count("task") <= before


def test_a_fork_has_threads_of_its_own(conv_bundle, run_python) -> None:
    code = (
        "import os\n"
        "import numpy as np\n"
        "from tvmopt.runtime import load\n"
        f"model = load({str(conv_bundle)!r})\n"
        "x = np.ones((1, 3, 8, 8), np.float32)\n"
        "want = model(x)[0]\n"
        "child = os.fork()\n"
        "same = bool((model(x)[0] == want).all())\n"
        "if not child: os._exit(0 if same else 1)\n"
        "print(same, os.waitpid(child, 0)[1])"
    )
    done = run_python("-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "True 0"), done.stderr


@pytest.mark.parametrize("value", ["", "-1", "1.5", "soon", "1000001"])
def test_the_spin_time_must_be_microseconds(conv_bundle, monkeypatch, value) -> None:
    monkeypatch.setenv(SPIN_VARIABLE, value)
    with pytest.raises(ConfigError) as caught:
        load(conv_bundle)
    assert f"{SPIN_VARIABLE} must be a number of microseconds from 0 to 1000000" in str(
        caught.value
    )


@pytest.mark.parametrize("value", ["0", "1", "1000000"])
def test_any_spin_time_gives_the_same(conv, conv_bundle, monkeypatch, value) -> None:
    monkeypatch.setenv(SPIN_VARIABLE, value)
    np.testing.assert_array_equal(load(conv_bundle)(_X)[0], conv(_X)[0])


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16"])
def test_arrays_start_at_cache_lines(shape, dtype) -> None:
    array = aligned_empty(shape, dtype)
    assert (array.shape, array.dtype.name) == (shape, dtype)
    assert address(array) % ALIGNMENT_BYTES == 0
    assert array.flags.c_contiguous and array.flags.writeable
