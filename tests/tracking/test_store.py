"""The store: absolute URIs, a fresh database under eight processes, experiments without a race."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tvmopt.tracking.store import absolute_uri, all_experiment_ids, experiment_id

PROCESSES, RUNS = 8, 20
_WRITER = """
import sys
from tvmopt.tracking.command import command
from tvmopt.tracking.runs import log_metrics
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
