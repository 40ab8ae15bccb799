"""The bundled example, run once through MLflow; the tests look at what it left."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """Root folder of the project."""
    return ROOT


@pytest.fixture(scope="session")
def project_env() -> Callable[[Path], dict[str, str]]:
    """Environment of a command of the project: its store in a folder, this Python first on PATH."""

    def env(folder: Path) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "TVM_"))}
        kept["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
        kept["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
        kept["MLFLOW_DISABLE_TELEMETRY"] = "true"
        return kept

    return env


@pytest.fixture(scope="session")
def mlflow_run(project_env) -> Callable[..., subprocess.CompletedProcess]:
    """Run an entry point as a user does: ``mlflow run . -e ENTRY -P name=value ...``.

    With one thread: two that share the cores with another test wait for each other in every kernel.
    """

    def run(folder: Path, entry: str = "main", **params: object) -> subprocess.CompletedProcess:
        argv = [sys.executable, "-m", "mlflow", "run", str(ROOT), "-e", entry]
        argv += ["--env-manager", "local"]
        if entry not in ("promote", "pull", "worker"):
            params.setdefault("threads", 1)
        for name, value in params.items():
            argv += ["-P", f"{name}={value}"]
        return subprocess.run(
            argv, cwd=folder, env=project_env(folder), capture_output=True, text=True, timeout=300
        )

    return run


@dataclasses.dataclass(frozen=True)
class Example:
    """A finished ``mlflow run .``: its folder and its output."""

    folder: Path
    done: subprocess.CompletedProcess

    @property
    def uri(self) -> str:
        """Tracking URI of its store."""
        return f"sqlite:///{self.folder / 'mlflow.db'}"

    def client(self) -> MlflowClient:
        """A client of its store."""
        return MlflowClient(self.uri, self.uri)


@pytest.fixture(scope="session")
def example(tmp_path_factory, mlflow_run) -> Example:
    """The bundled example after one ``mlflow run .``."""
    folder = tmp_path_factory.mktemp("example")
    done = mlflow_run(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return Example(folder, done)


@pytest.fixture
def use_example(example, monkeypatch):
    """Point MLflow in this process at the example's store."""
    import mlflow

    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", example.uri)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(example.folder)
    mlflow.set_tracking_uri(example.uri)
    mlflow.set_registry_uri(example.uri)
    yield example
    mlflow.set_tracking_uri(before[0])
    mlflow.set_registry_uri(before[1])
