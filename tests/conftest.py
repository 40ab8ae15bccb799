"""Fixtures shared by several test folders: small ONNX models and bundles built from them."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sampling import mark_slow
from tvmopt import host

ROOT = Path(__file__).parents[1]
_CORES = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set()
# Folder of an in-memory file system on Linux, and the bytes that must be free there.
_MEMORY, _ROOM = Path("/dev/shm"), 4 << 30
# Folders with the slowest tests. ``tune`` comes last: its tests that run alone wait for the test of
# the other worker, which is short by then.
_FIRST = ("notebooks", "tracking", "faults", "cli", "remote", "tune")
# Files that use the fixture ``example``, which takes a minute to set up.
_OF_THE_EXAMPLE = {
    f"tests/tracking/test_{name}.py"
    for name in ("cache", "flavor", "links", "main", "model_source", "promotion", "store")
}


def _keep_files_in_memory() -> None:
    """Put ``tmp_path`` in memory if there is space, because SQLite syncs to disk at each commit."""
    if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK):
        found = os.statvfs(_MEMORY)
        if found.f_bavail * found.f_frsize > _ROOM and not found.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


def pytest_configure(config: pytest.Config) -> None:
    """Request AMX permission for this process, and keep xdist from sorting files by test count.

    Tests run kernels in this process, which needs the permission as worker processes do.
    """
    host.request_amx(host.cpu_flags())
    _keep_files_in_memory()
    # Tests start hundreds of processes; without bytecode files each would compile the package.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Assign all files that use the fixture ``example`` to one worker, which sets it up once."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "the example" if file in _OF_THE_EXAMPLE else file

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before pytest drops what ``-m`` does not select
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Apply the mark ``sample``, and run workflows and tuning first.

    At the end, workflows and tuning would leave the other worker idle.
    """
    mark_slow(items)
    users = {item.nodeid.partition("::")[0] for item in items if _uses(item, "example")}
    if users - _OF_THE_EXAMPLE:
        raise pytest.UsageError(
            "every file that uses the fixture example must be in _OF_THE_EXAMPLE, or two workers "
            f"set it up, but these are not: {', '.join(sorted(users - _OF_THE_EXAMPLE))}"
        )
    items.sort(key=lambda item: [room not in item.path.parts for room in _FIRST])


def _uses(item: pytest.Item, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test marked ``alone`` while no test of another worker runs.

    Tests share a reader-writer lock. A waiting test also holds the gate, so that no later test of
    another worker overtakes it.

    TVM's runtime binds the thread that calls a model to the first core, and child processes inherit
    the affinity. It is reset after each test; otherwise all workers would share that core.
    """
    kind = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with (ROOT / "pyproject.toml").open() as gate, Path(__file__).open() as lock:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(lock, kind)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            if _CORES:
                os.sched_setaffinity(0, _CORES)
            fcntl.flock(lock, fcntl.LOCK_UN)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """Hide the name of the test, as in :func:`pytest_pyfunc_call`."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    """Hide the name of the test, which pytest sets in the environment, from child processes.

    The fork server of stages serves one environment: with another name in it, each test would start
    a server, which imports TVM for three seconds.
    """
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@contextmanager
def _mlflow_as_before() -> Iterator[None]:
    """Undo what is set in MLflow for the process: the store, the experiment, its variables."""

    def variables() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_")}

    def modules() -> dict[str, str]:
        found = {
            "mlflow.tracking._tracking_service.utils": "_tracking_uri",
            "mlflow.tracking.fluent": "_active_experiment_id",
        }
        return {module: name for module, name in found.items() if module in sys.modules}

    before = variables()
    values = {module: getattr(sys.modules[module], name) for module, name in modules().items()}
    yield
    for module, name in modules().items():
        setattr(sys.modules[module], name, values.get(module))
    for name in set(variables()) - set(before):
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _mlflow_as_before_the_test() -> Iterator[None]:
    with _mlflow_as_before():
        yield


@pytest.fixture(autouse=True, scope="module")
def _mlflow_as_before_the_module() -> Iterator[None]:
    with _mlflow_as_before():
        yield


def _make_model(nodes, inputs, outputs, constants=None, opset=17, domains=()):  # type: ignore[no-untyped-def]
    """Make an ONNX model; inputs and outputs are ``{name: (dtype, shape)}``, None for no shape."""
    import onnx
    from onnx import helper, numpy_helper

    def values(specs):  # type: ignore[no-untyped-def]
        for name, (dtype, shape) in specs.items():
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            yield helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        list(nodes),
        "graph",
        list(values(inputs)),
        list(values(outputs)),
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    assert isinstance(model, onnx.ModelProto)
    return model


@pytest.fixture(scope="session")
def make_model() -> Callable:
    """Return the builder of ONNX models: ``make_model(nodes, inputs, outputs, constants)``."""
    return _make_model


@pytest.fixture
def without_nncf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the package NNCF."""
    find_spec = importlib.util.find_spec

    def hide(name: str, package: str | None = None) -> Any:
        return None if name == "nncf" else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", hide)


@pytest.fixture(scope="session")
def conv_model():  # type: ignore[no-untyped-def]
    """1x3x8x8 -> Conv 3x3 -> Relu -> mean -> Gemm -> 1x5, all float32."""
    from onnx import helper

    rng = np.random.default_rng(0)
    return _make_model(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"], name="relu"),
            helper.make_node("GlobalAveragePool", ["r"], ["p"], name="mean"),
            helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
            helper.make_node("Gemm", ["f", "g"], ["y"], name="dense"),
        ],
        {"x": ("float32", [1, 3, 8, 8])},
        {"y": ("float32", [1, 5])},
        {
            "w": rng.standard_normal((8, 3, 3, 3), np.float32),
            "b": rng.standard_normal(8, np.float32),
            "g": rng.standard_normal((8, 5), np.float32),
        },
    )


@pytest.fixture(scope="session")
def two_input_model():  # type: ignore[no-untyped-def]
    """``sum = table[ids] + bias`` (4x8) and ``y = sum @ w`` (4x3), as ``y`` and ``out/sum``."""
    from onnx import helper

    rng = np.random.default_rng(1)
    return _make_model(
        [
            helper.make_node("Gather", ["table", "ids"], ["e"], name="embed"),
            helper.make_node("Add", ["e", "in/bias"], ["out/sum"], name="add"),
            helper.make_node("MatMul", ["out/sum", "w"], ["y"], name="project"),
        ],
        {"ids": ("int64", [4]), "in/bias": ("float32", [4, 8])},
        {"y": ("float32", [4, 3]), "out/sum": ("float32", [4, 8])},
        {
            "table": rng.standard_normal((6, 8), np.float32),
            "w": rng.standard_normal((8, 3), np.float32),
        },
    )


def _build(model, name: str, folder: Path) -> Path:  # type: ignore[no-untyped-def]
    """Convert, tune (default schedules) and build; ``folder`` gets one folder per stage."""
    import onnx

    from tvmopt.config import BuildConfig, ConvertConfig, TuneConfig
    from tvmopt.device.target import resolve_target
    from tvmopt.stages.build import build
    from tvmopt.stages.convert import convert
    from tvmopt.stages.tune import tune

    def quiet(done: int, total: int, text: str) -> None:
        pass

    threads = os.environ.get("TVM_NUM_THREADS")
    target = resolve_target("host", 2).to_dict()
    onnx.save(model, str(folder / "model.onnx"))
    stages = {stage: folder / stage for stage in ("convert", "tune", "build")}
    for path in stages.values():
        path.mkdir()
    try:
        convert(ConvertConfig("", target), folder / "model.onnx", stages["convert"], quiet)
        tune(TuneConfig(target, strategy="default"), stages["convert"], stages["tune"], quiet)
        build(BuildConfig(name, target), *list(stages.values())[:2], "d1", stages["build"], quiet)
    finally:
        os.environ.pop("TVM_NUM_THREADS", None)
        if threads is not None:
            os.environ["TVM_NUM_THREADS"] = threads
    return folder


@pytest.fixture(scope="session")
def conv_build(conv_model, tmp_path_factory) -> Path:  # type: ignore[no-untyped-def]
    """Return a folder with ``model.onnx`` and the results of ``convert``, ``tune``, ``build``."""
    return _build(conv_model, "conv", tmp_path_factory.mktemp("conv"))


@pytest.fixture(scope="session")
def conv_bundle(conv_build: Path) -> Path:
    """Compiled :func:`conv_model`."""
    return conv_build / "build" / "bundle"


@pytest.fixture(scope="session")
def two_input_bundle(two_input_model, tmp_path_factory) -> Path:  # type: ignore[no-untyped-def]
    """Compiled :func:`two_input_model`."""
    folder = _build(two_input_model, "two", tmp_path_factory.mktemp("two"))
    return folder / "build" / "bundle"


@pytest.fixture
def never_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test when this process opens the library of a model."""
    opened = "tvmopt.runtime.callers.open_library"
    monkeypatch.setattr(opened, lambda *_, **__: pytest.fail("the library was opened"))


@pytest.fixture(scope="session")
def make_store(tmp_path_factory) -> Callable[[Path], str]:  # type: ignore[no-untyped-def]
    """Make a SQLite tracking store in a folder and return its URI.

    It copies a template, because MLflow's migrations take a CPU second for each new store.
    """
    from tvmopt.tracking.store.schema import build_store

    template = tmp_path_factory.mktemp("store") / "mlflow.db"
    build_store(f"sqlite:///{template}", lambda: None)  # the tables, and no default experiment

    def make(folder: Path) -> str:
        return f"sqlite:///{shutil.copyfile(template, folder / 'mlflow.db')}"

    return make


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess]:
    """Run ``python ARGS`` in the repository; keywords set environment variables, None unsets."""

    def run(*args: str, cwd: Path = ROOT, **env: str | None) -> subprocess.CompletedProcess:
        merged = {**os.environ, **env}
        return subprocess.run(
            [sys.executable, *args],
            env={k: v for k, v in merged.items() if v is not None},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run


@pytest.fixture
def evaluate_model(conv_build, conv_bundle, tmp_path) -> Callable:  # type: ignore[no-untyped-def]
    """Evaluate bundles of the session model; return the result and the output folder."""
    from tvmopt.config import EvaluateConfig
    from tvmopt.stages.comparison_table import CANDIDATE, UNTUNED
    from tvmopt.stages.evaluate import evaluate

    def run(data=None, bundles=None, torch_source=None, **options):  # type: ignore[no-untyped-def]
        path = None
        if data is not None:
            path = tmp_path / "data.npz"
            np.savez(path, **data)
        out = tmp_path / "out"
        out.mkdir()
        config = EvaluateConfig(threads=1, **{"time_limit_s": 1.0, **options})
        bundles = bundles or {CANDIDATE: conv_bundle, UNTUNED: conv_bundle}
        seen = []
        convert_dir = conv_build / "convert"
        result = evaluate(
            config, convert_dir, bundles, out, lambda *s: seen.append(s), path, torch_source
        )
        assert seen[-1][0] == 100
        return result, out

    return run


@pytest.fixture(scope="session")
def write_kernel_bundle() -> Callable:
    """Write a bundle into a folder that holds a ``model.so`` without inputs and outputs."""
    from tvmopt.digest import sha256_file
    from tvmopt.runtime import ModelMetadata
    from tvmopt.runtime.bundle import write_golden
    from tvmopt.versions import TVM_VERSION, VERSION

    def write(folder: Path, target: dict, instructions: tuple[str, ...]) -> None:
        write_golden(folder, {}, [])
        ModelMetadata(
            name="kernel",
            inputs=(),
            outputs=(),
            target=target,
            host_cpu="",
            threads=1,
            tvm_version=TVM_VERSION,
            tvmopt_version=VERSION,
            library_sha256=sha256_file(folder / "model.so"),
            golden_sha256=sha256_file(folder / "golden.npz"),
            digest="",
            tolerance=0.0,
            instructions=instructions,
        ).write(folder)

    return write
