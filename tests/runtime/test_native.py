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


def _count(kind: str) -> int:
    """Return the number of threads or descriptors of this process."""
    return len(list(Path("/proc/self", kind).iterdir()))


_X = np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32)


def test_a_native_model_runs_without_tvm(conv_bundle, run_python) -> None:
    code = (
        "import sys\n"
        "for name in ('tvm', 'tvm_ffi', 'onnx'): sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "from tvmopt.runtime import load\n"
        f"folder = Path({str(conv_bundle)!r})\n"
        "print(load(folder).check_golden(folder) < 1e-4)"
    )
    done = run_python("-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


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
