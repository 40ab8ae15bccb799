"""Fixtures: one MLflow run of the bundled example, stores, commands, servers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.entities.model_registry import ModelVersion

from tests.commands import CommandServer
from tests.mlflow_runs import client_of, runs_of
from tests.tracking.registered_model import Registered, in_store, register_bundle
from tests.tracking.serving import NAME, SHAPE, Server
from tvmopt.cli import command_line
from tvmopt.cli.commands import function as find_function
from tvmopt.parameters import ENTRY_POINTS

ROOT = Path(__file__).parents[2]
_SMALL_SEARCH = {"threads": 1, "dtypes": "float32", "strategies": "default", "repeats": 20}
# Two threads that share the cores with another test wait for each other in every kernel. The number
# of tried configurations does not matter here; the notebook tries all.
_QUICK = {"threads": 1, "topk": 1}


@pytest.fixture(scope="session")
def root() -> Path:
    """Root folder of the project."""
    return ROOT


@pytest.fixture(scope="session")
def project_env() -> Callable[[Path], dict[str, str]]:
    """Return the environment of a command: a store in a folder, this Python first on PATH."""

    def env(folder: Path) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "TVM_"))}
        kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
        kept["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
        kept["MLFLOW_DISABLE_TELEMETRY"] = "true"
        return kept

    return env


@pytest.fixture(scope="session")
def mlflow_run(project_env) -> Callable[..., subprocess.CompletedProcess]:
    """Run an entry point as a user does: ``mlflow run . -e ENTRY -P name=value ...``."""

    def run(folder: Path, entry: str = "main", **params: object) -> subprocess.CompletedProcess:
        argv = [sys.executable, "-m", "mlflow", "run", str(ROOT), "-e", entry]
        argv += ["--env-manager", "local"]
        known = {parameter.name for parameter in ENTRY_POINTS[entry]}
        params = {k: v for k, v in _QUICK.items() if k in known} | params
        for name, value in params.items():
            argv += ["-P", f"{name}={value}"]
        return subprocess.run(
            argv, cwd=folder, env=project_env(folder), capture_output=True, text=True
        )

    return run


@pytest.fixture(scope="session")
def run_flow(project_env, tmp_path_factory) -> Iterator[Callable[..., subprocess.CompletedProcess]]:
    """Run an entry point as ``mlflow run`` does, without the imports; see ``tests.commands``."""
    folder = tmp_path_factory.mktemp("commands")
    server: CommandServer | None = None

    def run(folder_: Path, entry: str, **params: object) -> subprocess.CompletedProcess:
        nonlocal server
        if server is None:
            server = CommandServer(folder, project_env(folder))
        known = {parameter.name for parameter in ENTRY_POINTS[entry]}
        params = {k: v for k, v in _QUICK.items() if k in known} | params
        words = [word for name, value in params.items() for word in (f"--{name}", str(value))]
        return server.run([f"flows.{entry}", *words], project_env(folder_), ROOT)

    yield run
    if server is not None:
        server.close()


@pytest.fixture
def refuse(monkeypatch, capfd, tmp_path) -> Callable[..., None]:
    """Run an entry point with parameters that it must reject in one line, before it opens a run.

    It runs in this process, because the start-up of the command is the same for all parameters.
    """

    def run(entry: str, params: Mapping[str, str], message: str) -> None:
        words = [word for name, value in params.items() for word in (f"--{name}", value)]
        monkeypatch.setattr("sys.argv", [entry, *words])
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
        function = find_function(entry)  # output of imports is not output of the command
        capfd.readouterr()
        with pytest.raises(SystemExit) as exited:
            command_line.run(entry, lambda: function)
        said = capfd.readouterr().err
        assert exited.value.code == 2, said
        assert len(said.strip().splitlines()) == 1
        assert said.startswith(f"error: {message}")
        assert not (tmp_path / "mlflow.db").exists()  # no run was opened

    return run


@dataclasses.dataclass(frozen=True)
class Store:
    """A tracking store with the results of searches."""

    client: MlflowClient

    def runs(self, query: str = "") -> list[Run]:
        """Return the runs of all experiments."""
        return runs_of(self.client, query)

    def trials(self) -> list[Run]:
        """Return the runs of trials."""
        return [r for r in self.runs() if "tvmopt.trial" in r.data.tags]

    def champion(self) -> ModelVersion:
        """Return the champion of the bundled example."""
        return self.client.get_model_version_by_alias("digits-cnn", "champion")

    def check_search(self, layouts: Collection[str]) -> None:
        """Check that a search is complete: no trial lost or repeated, every run status right.

        Args:
            layouts: Layouts of the trials, each compiled with ``strategy=default``.
        """
        assert not [r for r in self.runs() if r.info.status == "RUNNING"]
        finished = [r for r in self.trials() if r.info.status == "FINISHED"]
        made = sorted((r.data.params["layout"], r.data.params["effort"]) for r in finished)
        assert made == sorted([("NCHW", "none"), *((layout, "default") for layout in layouts)])
        for run in finished:
            assert "latency_ms_p50" in run.data.metrics
        query = "tags.`tvmopt.entry_point` = 'search' and attributes.status = 'FINISHED'"
        ended = self.runs(query)
        [parent] = [r for r in ended if "tvmopt.search_run" not in r.data.tags]
        assert {r.data.tags["mlflow.parentRunId"] for r in finished} == {parent.info.run_id}
        linked = {r.data.tags["tvmopt.search_run"] for r in ended if r is not parent}
        assert linked <= {parent.info.run_id}  # runs of commands that found the search finished
        assert self.champion().tags["trial"] == parent.data.tags["tvmopt.winner"]


@pytest.fixture(scope="module")
def store_uri(tmp_path_factory, make_store) -> str:
    """Return the URI of a store for the tests of one file."""
    return make_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def store() -> Callable[[Path | str], Store]:
    """Return the store in a folder, or at a URI."""
    return lambda place: Store(client_of(place))


@pytest.fixture(scope="session")
def search_command() -> Callable[..., list[str]]:
    """Return the command of a small search of the bundled example, without ``mlflow run``."""

    def command(**options: object) -> list[str]:
        argv = [sys.executable, "-m", "flows.search"]
        asked = {**_SMALL_SEARCH, **options}
        return argv + [part for k, v in asked.items() for part in (f"--{k}", str(v))]

    return command


@pytest.fixture(scope="session")
def mlflow_search() -> Callable[..., list[str]]:
    """Return the command of the same search through ``mlflow run``."""

    def command(**options: object) -> list[str]:
        argv = [sys.executable, "-m", "mlflow", "run", str(ROOT), "-e", "search"]
        argv += ["--env-manager", "local"]
        asked = {**_SMALL_SEARCH, **options}
        return argv + [part for k, v in asked.items() for part in ("-P", f"{k}={v}")]

    return command


@dataclasses.dataclass(frozen=True)
class Example:
    """A finished ``mlflow run .``: its folder, output and parameters."""

    folder: Path
    done: subprocess.CompletedProcess
    asked: Mapping[str, object]

    @property
    def uri(self) -> str:
        """Return the tracking URI of its store."""
        return f"sqlite:///{self.folder / 'mlflow.db'}"

    def client(self) -> MlflowClient:
        """Return a client of its store."""
        return client_of(self.folder)


@pytest.fixture(scope="session")
def example(tmp_path_factory, mlflow_run) -> Example:
    """Return the bundled example after one ``mlflow run .``."""
    folder = tmp_path_factory.mktemp("example")
    done = mlflow_run(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return Example(folder, done, _QUICK)


@contextlib.contextmanager
def _mlflow_at(uri: str) -> Iterator[None]:
    """Point MLflow in this process at a store."""
    import mlflow

    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    yield
    # Not the previous value: a URI that is set takes precedence over the environment.
    mlflow.set_tracking_uri(None)
    mlflow.set_registry_uri(None)


@pytest.fixture
def use_example(example, monkeypatch):
    """Point MLflow in this process at the example's store."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", example.uri)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(example.folder)
    with _mlflow_at(example.uri):
        yield example


@pytest.fixture(scope="module")
def serving_store(tmp_path_factory, conv_bundle, make_store) -> Path:
    """Return a folder with a store in which the single-input bundle is the champion of ``NAME``."""
    from tvmopt.tracking.registry import versions as registry

    folder = tmp_path_factory.mktemp("serve")
    uri = make_store(folder)
    client = MlflowClient(uri, uri)
    with mock.patch.dict(os.environ, MLFLOW_TRACKING_URI=uri), _mlflow_at(uri):
        experiment = client.create_experiment(NAME, (folder / "artifacts").as_uri())
        run = client.create_run(experiment)
        client.set_terminated(run.info.run_id)
        registry.register(client, NAME, conv_bundle, run.info.run_id, {})
        client.set_registered_model_alias(NAME, "champion", "1")
    return folder


@pytest.fixture(scope="module")
def start_server(serving_store, conv_build, project_env) -> Iterator[Callable[..., Server]]:
    """Start a server of ``serving_store``; keywords are parameters of the entry point.

    Server ``n`` logs into ``serve-n.log`` in the folder of the store. Its temporary files are in
    ``tmp-n``.
    """
    import onnxruntime as ort

    session = ort.InferenceSession(
        str(conv_build / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    samples = np.random.default_rng(5).standard_normal((16, *SHAPE)).astype(np.float32)
    wanted = np.array([session.run(None, {"x": sample})[0] for sample in samples])
    started: list[subprocess.Popen] = []

    def run(through_mlflow: bool = False, **params: object) -> Server:
        params = {"name": NAME, "port": 0, **params}
        words = [word for n, v in params.items() for word in (f"--{n}", str(v))]
        command = ["flows.serve", *words]
        if through_mlflow:
            words = [word for n, v in params.items() for word in ("-P", f"{n}={v}")]
            command = ["mlflow", "run", ".", "-e", "serve", "--env-manager", "local", *words]
        log = serving_store / f"serve-{len(started)}.log"
        temporary = serving_store / f"tmp-{len(started)}"
        temporary.mkdir()
        env = project_env(serving_store) | {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        started.append(process)
        return Server(process, _announced_port(process, log), samples, wanted)

    yield run
    for process in started:
        process.kill()
        process.wait()


def _announced_port(process: subprocess.Popen, log: Path) -> int:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        text = log.read_text()
        assert process.poll() is None, text
        if "/invocations" in text:
            return int(text.partition("http://127.0.0.1:")[2].partition("/")[0])
        time.sleep(0.1)
    raise AssertionError(f"the server did not start: {log.read_text()}")


@pytest.fixture
def register(store_uri, tmp_path):
    """Register a bundle under a new name."""
    with in_store(store_uri, tmp_path) as client:
        yield lambda bundle: register_bundle(client, tmp_path, bundle)


@pytest.fixture
def registered(register, conv_bundle) -> Registered:
    """Register the single-input bundle."""
    return register(conv_bundle)


@pytest.fixture
def store_client(tmp_path, make_store, monkeypatch):
    """Point MLflow in this process at a store of this test."""
    uri = make_store(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    with _mlflow_at(uri):
        yield MlflowClient(uri, uri)
