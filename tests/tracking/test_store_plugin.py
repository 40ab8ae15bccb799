"""MLflow's own commands create a SQLite store concurrently through our plugin, without errors."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from mlflow import MlflowClient

import tvmopt_mlflow
from tests.mlflow_runs import client_of, runs_of
from tvmopt.tracking.store import schema

ROOT = Path(__file__).parents[2]
_LOOK = "import mlflow; print(len(mlflow.MlflowClient().search_experiments()))"
_REGISTRY = "import mlflow; print(len(mlflow.MlflowClient().search_registered_models()))"


@pytest.fixture
def installed(tmp_path, project_env) -> dict[str, str]:
    """Return an environment with this package and its entry points installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / "site" / "tvmopt_plugin-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tvmopt-plugin\nVersion: 0\n")
    lines = []
    for group, named in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in named.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    path = os.pathsep.join([str(ROOT), str(tmp_path / "site")])
    (tmp_path / "cache").mkdir()
    env = {**project_env(tmp_path), "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env.pop("MLFLOW_TRACKING_URI")
    return env


def _start(args: list[str], env: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *args], env=env, cwd=folder, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.slow  # tests/faults/test_fresh_store.py has a fresh store, too
def test_stores_are_opened_at_once(tmp_path, installed) -> None:
    folder = tmp_path / "a folder"  # MLflow's default, which it encodes with %20
    folder.mkdir()
    processes = [_start(["-c", _LOOK], installed, folder) for _ in range(2)]
    processes.append(_start(["-c", _REGISTRY], installed, folder))
    said = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 3, said
    assert [text.splitlines()[-1] for text in said] == ["1", "1", "0"]
    assert [path.name for path in folder.glob("*.db")] == ["mlflow.db"]
    assert list(folder.glob(".tvmopt-*")) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_first_mlflow_runs_at_once(tmp_path, installed) -> None:
    # The cheapest entry point; each fails only because nothing is registered.
    args = ["-m", "mlflow", "run", str(ROOT), "-e", "promote", "--env-manager", "local"]
    processes = [_start([*args, "-P", "name=none"], installed, tmp_path) for _ in range(3)]
    for process in processes:
        said, _ = process.communicate(timeout=500)
        assert "error: name must be a registered model (none), but got 'none'" in said, said
        assert "sqlite3." not in said and "alembic" not in said.replace("alembic.runtime", "")
    assert [run.info.status for run in runs_of(client_of(tmp_path))] == ["FAILED"] * 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_and_mlflow_run_begin_a_store_at_once(tmp_path, installed) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    args = ["-m", "mlflow", "server", "--backend-store-uri", uri, "--port", "0"]
    server = _start([*args, "--workers", "1"], installed, tmp_path)
    try:
        look = _start(["-c", _LOOK], {**installed, "MLFLOW_TRACKING_URI": uri}, tmp_path)
        said, _ = look.communicate(timeout=200)
        assert look.returncode == 0, said
        time.sleep(1)
        assert server.poll() is None, server.communicate()[0]
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_wrong_packages_leave_mlflow_as_it_is(tmp_path, installed) -> None:
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import importlib.metadata as metadata\nreal = metadata.version\n"
        "metadata.version = lambda name: '0.1.15' if name == 'apache-tvm-ffi' else real(name)\n"
    )
    said, _ = _start(["-c", _LOOK], installed, tmp_path).communicate(timeout=100)
    assert said.splitlines()[-1] == "1", said


def test_the_plugin_is_light(tmp_path, installed) -> None:
    code = (
        "import sys, tvmopt_mlflow\n"
        "assert not {'mlflow', 'tvmopt', 'tvm', 'numpy', 'sqlalchemy'} & set(sys.modules)"
    )
    process = _start(["-c", code], installed, tmp_path)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 0, said


def test_a_complete_store_is_not_waited_for(tmp_path, monkeypatch) -> None:
    file = tmp_path / "mlflow.db"
    with sqlite3.connect(file) as database:
        database.execute("create table experiments (experiment_id integer)")
    asked: list[str] = []
    monkeypatch.setattr(schema, "build_store", lambda uri, build: asked.append("waits"))
    tvmopt_mlflow._build(f"sqlite:///{file}", lambda: asked.append("incomplete"))
    with sqlite3.connect(file) as database:
        database.execute("insert into experiments values (0)")
    tvmopt_mlflow._build(f"sqlite:///{file}", lambda: asked.append("complete"))
    assert asked == ["waits", "complete"]


@pytest.mark.slow  # two imports of MLflow
def test_a_saved_model_finds_no_other_tvmopt(tmp_path, installed) -> None:
    # MLflow prepends the code of a model to sys.path; modules already imported stay.
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    MlflowClient(uri, uri).search_experiments()
    code = (
        "import mlflow, sys; client = mlflow.MlflowClient(); client.search_experiments()\n"
        "client.search_registered_models(); assert 'tvmopt_mlflow' in sys.modules\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'tvmopt'])"
    )
    process = _start(["-c", code], {**installed, "MLFLOW_TRACKING_URI": uri}, tmp_path)
    said, _ = process.communicate(timeout=100)
    assert said.splitlines()[-1] == "[]", said


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///:memory:", "sqlite:////a.db?timeout=5"])
def test_stores_that_are_no_plain_file_get_tables_where_they_are(monkeypatch, uri) -> None:
    made: list[str] = []
    monkeypatch.setattr("tvmopt.tracking.store.schema._create_tables", made.append)
    schema.build_store(uri, lambda: made.append("built"))
    assert made == [uri, "built"]


def test_the_variable_of_a_replica_is_mlflows() -> None:
    from mlflow.server.constants import READ_REPLICA_BACKEND_STORE_URI_ENV_VAR

    assert tvmopt_mlflow.REPLICA_VARIABLE == READ_REPLICA_BACKEND_STORE_URI_ENV_VAR
