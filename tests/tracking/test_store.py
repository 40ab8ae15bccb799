"""Tests of the store: absolute URIs, eight processes on a new database, concurrent experiments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from mlflow import MlflowClient
from mlflow.store.db.utils import create_sqlalchemy_engine
from sqlalchemy import make_url

from tvmopt.errors import EnvironmentSetupError
from tvmopt.tracking.store import schema
from tvmopt.tracking.store.mlflow_store import absolute_uri, all_experiment_ids, experiment_id
from tvmopt.tracking.store.schema import build_store

PROCESSES, RUNS = 8, 20
_WRITER = """
import sys
from tvmopt.tracking.store.command import command
from tvmopt.tracking.store.runs import log_metrics
for number in range(int(sys.argv[2])):
    with command("test", "shared", {"writer": sys.argv[1]}) as session:
        log_metrics(session.client, session.run_id, {"number": number})
"""


def test_relative_sqlite_becomes_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert absolute_uri("sqlite:///mlflow.db") == f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.mark.parametrize(
    "uri", ["sqlite:////data/m.db", "http://127.0.0.1:5000", "postgresql://u@h/db"]
)
def test_other_uris_stay(uri):
    assert absolute_uri(uri) == uri


@pytest.mark.slow
def test_eight_processes_on_a_fresh_store_lose_nothing(tmp_path, project_env, root):
    env = {**project_env(tmp_path), "PYTHONPATH": str(root)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(number), str(RUNS)],
            env=env,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    for writer in writers:
        out, _ = writer.communicate(timeout=280)
        assert writer.returncode == 0, out
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    experiment = client.get_experiment_by_name("shared").experiment_id
    assert not client.search_runs([i for i in all_experiment_ids(client) if i != experiment])
    runs = client.search_runs([experiment], max_results=1000)
    assert {r.info.status for r in runs} == {"FINISHED"}
    found = sorted((int(r.data.params["writer"]), int(r.data.metrics["number"])) for r in runs)
    assert found == [(p, n) for p in range(PROCESSES) for n in range(RUNS)]


def test_deleted_experiment_is_restored(use_example):
    client = use_example.client()
    first = experiment_id(client, "deleted-once")
    client.delete_experiment(first)
    assert experiment_id(client, "deleted-once") == first
    assert client.get_experiment(first).lifecycle_stage == "active"


def test_artifacts_lie_beside_the_database(use_example, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    client = use_example.client()
    found = client.get_experiment(experiment_id(client, "from elsewhere"))
    location = Path(found.artifact_location.removeprefix("file://"))
    assert location.parent == use_example.folder / "mlruns"


def _odd(folder: Path, kind: str) -> Path:
    path = folder / "store.db"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "dangling":
        path.symlink_to(folder / "gone" / "store.db")
    elif kind == "no folder":
        (folder / "file").touch()
        path = folder / "file" / "store.db"
    else:
        path.write_bytes(os.urandom(10_000))
    return path


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("folder", "it is a folder"),
        ("pipe", "it is a pipe or a device"),
        ("loop", "Too many levels of symbolic links"),
        ("dangling", "it is a link to a file that does not exist"),
        ("no folder", "Not a directory"),
        ("no database", "file is not a database"),
    ],
)
def test_a_file_that_is_no_store_is_refused_at_once(tmp_path, monkeypatch, capfd, kind, words):
    path = _odd(tmp_path, kind)
    monkeypatch.setattr(schema.time, "sleep", lambda s: pytest.fail("it was tried again"))
    with pytest.raises(EnvironmentSetupError) as caught:
        build_store(f"sqlite:///{path}", lambda: pytest.fail("it was built"))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "MLFLOW_TRACKING_URI" in str(caught.value)
    assert capfd.readouterr().err == ""  # MLflow logs each of its attempts
    assert os.path.lexists(path) == (kind != "no folder")


@pytest.mark.parametrize("name", ["a b'c%20d", "new folder/deep"])
def test_a_store_in_an_odd_or_new_folder_is_made(tmp_path, name):
    uri = f"sqlite:///{tmp_path}/{name}/mlflow.db"
    assert build_store(uri, lambda: "built") == "built"
    assert (tmp_path / unquote(name) / "mlflow.db").stat().st_size > 0


@pytest.mark.parametrize("driver", ["postgresql", "postgresql+psycopg2", "mysql+pymysql"])
def test_a_server_that_is_down_is_one_line(monkeypatch, capfd, driver):
    slept: list[float] = []
    monkeypatch.setattr(schema.time, "sleep", slept.append)
    monkeypatch.setattr(schema.time, "monotonic", lambda: sum(slept))
    uri = f"{driver}://bob:s3cr3t@127.0.0.1:1/runs"
    try:
        create_sqlalchemy_engine(uri)
    except ImportError as error:
        pytest.skip(f"there is no driver: {error}")
    with pytest.raises(EnvironmentSetupError) as caught:
        build_store(uri, lambda: pytest.fail("it was built"))
    text = str(caught.value)
    assert f"the tracking store '{driver}://bob:***@127.0.0.1:1/runs' must answer, but: " in text
    assert "refused" in text
    assert text.endswith("; start it, or check MLFLOW_TRACKING_URI")
    assert "s3cr3t" not in text
    assert "\n" not in text
    assert len(slept) > 1
    assert sum(slept) <= 30
    assert capfd.readouterr().err == ""


def test_one_attempt_to_connect_has_a_limit_of_time():
    limited = schema._with_timeout("postgresql+psycopg2://bob:s3cr3t@db/runs?sslmode=require")
    url = make_url(limited)
    assert (url.password, url.query["sslmode"], url.query["connect_timeout"]) == (
        "s3cr3t", "require", "5",
    )  # fmt: skip
    for uri in ("postgresql+psycopg2://db/runs?connect_timeout=60", "mssql+pyodbc://db/runs"):
        assert schema._with_timeout(uri) == uri


_COMMAND = """
from tvmopt.tracking.store.command import command
with command("test", "next", {}):
    pass
"""


@pytest.mark.slow  # tests/faults/test_fresh_store.py makes one
def test_the_command_that_makes_a_store_says_where_it_is(run_python, tmp_path, root):
    env = {"MLFLOW_TRACKING_URI": None, "PYTHONPATH": str(root)}
    first, second = (run_python("-c", _COMMAND, cwd=tmp_path, **env) for _ in range(2))
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert first.stdout == f"store      {uri} is new; MLFLOW_TRACKING_URI names another one\n"
    assert (second.returncode, second.stdout) == (0, ""), second.stderr
    assert (tmp_path / "mlflow.db").is_file()
