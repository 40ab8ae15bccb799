"""Searches through ``mlflow run``: what they leave, and what no failure and no kill can spoil."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

#: Each runs whole searches, of minutes; they are run with `pytest -m slow`.
pytestmark = pytest.mark.slow

SMALL = {
    "dtypes": "float32", "strategies": "default", "layouts": "NHWC,NCHW", "trials": 2,
    "repeats": 20,
}  # fmt: skip


def _client(folder: Path) -> MlflowClient:
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    return MlflowClient(uri, uri)


def _runs(client: MlflowClient, query: str = ""):
    ids = [e.experiment_id for e in client.search_experiments()]
    return client.search_runs(ids, query, max_results=1000)


def _trials(client: MlflowClient):
    return [r for r in _runs(client) if "tvmopt.trial" in r.data.tags]


@pytest.fixture(scope="module")
def searched(tmp_path_factory, mlflow_run):
    """A finished search over two number formats, and what it printed."""
    folder = tmp_path_factory.mktemp("search")
    asked = {**SMALL, "dtypes": "float32,int8", "strategies": "default,fast", "topk": 3,
             "layouts": "NHWC", "trials": 3, "sensitivity_time": 10}  # fmt: skip
    done = mlflow_run(folder, "search", **asked)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, asked, done


def test_a_search_leaves_a_champion_and_the_evidence(searched) -> None:
    folder, _, done = searched
    client = _client(folder)
    [parent] = _runs(client, "tags.`tvmopt.entry_point` = 'search'")
    trials = _trials(client)
    assert parent.info.status == "FINISHED"
    assert len(trials) == 4
    assert {r.info.status for r in trials} == {"FINISHED"}
    assert {r.data.tags["mlflow.parentRunId"] for r in trials} == {parent.info.run_id}
    assert {r.data.params["dtype"] for r in trials} == {"float32", "int8"}
    for key in ("latency_ms_p50", "latency_ms_adjusted", "accuracy_drop", "speedup_vs_baseline"):
        assert all(key in r.data.metrics for r in trials), key
    files = {f.path for f in client.list_artifacts(parent.info.run_id)}
    assert files >= {
        "trials.csv", "trials.md", "space.yaml", "report.html", "pareto.png", "history.png",
        "importances.png",
    }  # fmt: skip
    note = parent.data.tags["mlflow.note.content"]
    winner = parent.data.tags["tvmopt.winner"]
    assert f"trial {winner}" in note and "ONNX Runtime" in note
    version = client.get_model_version_by_alias("digits-cnn", "champion")
    assert version.tags["trial"] == winner
    assert str(version.version) == parent.data.tags["tvmopt.registered_version"]
    assert parent.data.metrics["speedup_vs_baseline"] > 0
    assert "models:/digits-cnn@champion" in done.stdout


def test_stages_are_done_once_for_all_trials(searched) -> None:
    client = _client(searched[0])
    digests = [
        r.data.tags["tvmopt.digest"] for r in _runs(client) if "tvmopt.digest" in r.data.tags
    ]
    assert len(digests) == len(set(digests))


def test_the_page_needs_nothing_beside_it(searched, tmp_path) -> None:
    client = _client(searched[0])
    [parent] = _runs(client, "tags.`tvmopt.entry_point` = 'search'")
    path = client.download_artifacts(parent.info.run_id, "report.html", str(tmp_path))
    text = Path(path).read_text()
    assert text.count("data:image/png;base64,") == 3
    assert "http" not in text.replace("http://127.0.0.1", "")
    assert 'class="winner"' in text


@pytest.mark.alone
def test_a_finished_search_costs_little_to_repeat(searched, mlflow_run) -> None:
    folder, asked, _ = searched
    before = len(_runs(_client(folder)))
    start = time.monotonic()
    done = mlflow_run(folder, "search", **asked)
    assert time.monotonic() - start < 30
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is left to try" in done.stdout
    assert len(_runs(_client(folder))) == before + 1


def test_more_trials_go_on_with_the_same_study(searched, mlflow_run) -> None:
    folder, asked, _ = searched
    done = mlflow_run(folder, "search", **{**asked, "trials": 4})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gone on with: 3 trials done" in done.stdout
    numbers = sorted(int(r.data.tags["tvmopt.trial"]) for r in _trials(_client(folder)))
    assert numbers == list(range(5))


FAULTS = """
import json, os, signal, sys, time
argv = sys.orig_argv
if "tvmopt.stages.child" in argv:
    request = json.load(open(argv[-1]))
    layout = request["config"].get("layout")
    fault = {"NHWC": "crash", "NCHW16c": "hang", "NCHW8c": "memory"}.get(layout)
    if request["stage"] == "convert" and fault == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if request["stage"] == "convert" and fault == "hang":
        time.sleep(1000)
    if request["stage"] == "convert" and fault == "memory":
        eaten = []
        while True:
            eaten.append(bytearray(50_000_000))
            time.sleep(0.02)
    if request["stage"] == "evaluate":
        import yaml
        with open(request["inputs"]["convert"] + "/config.yaml") as file:
            wrong = yaml.safe_load(file)["layout"] == "NCHW4c"
        if wrong:
            from tvmopt.runtime import CompiledModel
            right = CompiledModel.__call__
            CompiledModel.__call__ = lambda self, x: [-y for y in right(self, x)]
"""


@pytest.mark.timeout(600)
def test_each_kind_of_fault_is_one_failed_run_and_the_search_goes_on(
    tmp_path, project_env, root
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    env = {**project_env(tmp_path), "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    argv = ["--layouts", "NHWC,NCHW16c,NCHW8c,NCHW4c,NCHW", "--dtypes", "float32",
            "--strategies", "default", "--trials", "5", "--repeats", "20", "--threads", "1",
            "--trial_timeout", "60", "--memory_limit", "3000"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "flows.search", *argv],
        env=env, cwd=root, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    client = _client(tmp_path)
    failed = {
        r.data.params["layout"]: r for r in _trials(client) if r.info.status == "FAILED"
    }
    assert {k: r.data.tags["tvmopt.failure_class"] for k, r in failed.items()} == {
        "NHWC": "crash", "NCHW16c": "timeout", "NCHW8c": "out_of_memory", "NCHW4c": "accuracy",
    }  # fmt: skip
    assert "SIGSEGV" in failed["NHWC"].data.tags["tvmopt.error"]
    assert "60 s" in failed["NCHW16c"].data.tags["tvmopt.error"]
    assert "latency_ms_p50" not in failed["NCHW4c"].data.metrics
    assert client.get_model_version_by_alias("digits-cnn", "champion").tags["layout"] == "NCHW"


def test_a_bar_that_nothing_meets_keeps_the_nearest_and_fails(tmp_path, mlflow_run) -> None:
    done = mlflow_run(tmp_path, "search", **{**SMALL, "layouts": "NHWC", "trials": 1,
                                             "max_library_mb": 0.001})  # fmt: skip
    assert done.returncode == 1
    assert "no artifact of the search keeps to its limits" in done.stderr
    client = _client(tmp_path)
    [version] = client.search_model_versions("name='digits-cnn'")
    assert version.tags["feasible"] == "false"
    assert "champion" not in client.get_registered_model("digits-cnn").aliases
    [parent] = _runs(client, "tags.`tvmopt.entry_point` = 'search'")
    assert parent.info.status == "FAILED"
    assert parent.data.tags["tvmopt.failure_class"] == "nothing_feasible"


@pytest.mark.parametrize(
    ("entry", "asked", "said"),
    [
        ("search", {"objectives": "size"}, "objectives must be latency, and after it"),
        ("search", {"trials": 0, "time_budget": 0}, "one of trials, time_budget and patience"),
        ("search", {"dtypes": "int7"}, "dtypes must be one of"),
        ("search", {"storage": "nowhere://x"}, "storage must be the URL of a database"),
        ("search", {"max_library_mb": -1}, "max_library_mb must be at least 0"),
        ("worker", {"study": "none-such"}, "study must be one that a search has begun"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_no_run(
    tmp_path, project_env, root, entry, asked, said
) -> None:
    argv = [part for name, value in asked.items() for part in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", f"flows.{entry}", *argv],
        env={**project_env(tmp_path), "PYTHONPATH": str(root)},
        cwd=root, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert said in done.stderr


# --- kills


def _command(trials: int) -> list[str]:
    argv = [sys.executable, "-m", "flows.search", "--threads", "1"]
    for name, value in {**SMALL, "trials": trials, "layouts": "NHWC,NCHW,NCHW8c"}.items():
        argv += [f"--{name}", str(value)]
    return argv


def _killed_then_completed(folder: Path, env: dict[str, str], root: Path, after: list[float]):
    """Kill a search after so many seconds each time, then let it end; its output."""
    for seconds in after:
        process = subprocess.Popen(
            _command(3), env=env, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    done = subprocess.run(
        _command(3), env=env, cwd=root, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def _check_whole(folder: Path) -> None:
    """No trial lost, none done twice, no run that says what is not so."""
    client = _client(folder)
    assert not [r for r in _runs(client) if r.info.status == "RUNNING"]
    finished = [r for r in _trials(client) if r.info.status == "FINISHED"]
    variants = [(r.data.params["layout"], r.data.params["effort"]) for r in finished]
    assert sorted(variants) == [
        ("NCHW", "default"), ("NCHW", "none"), ("NCHW8c", "default"), ("NHWC", "default"),
    ]  # fmt: skip
    for run in finished:
        assert "latency_ms_p50" in run.data.metrics
    query = "tags.`tvmopt.entry_point` = 'search' and attributes.status = 'FINISHED'"
    parents = _runs(client, query)
    assert len(parents) == 1
    assert {r.data.tags["mlflow.parentRunId"] for r in finished} == {parents[0].info.run_id}
    assert client.get_model_version_by_alias("digits-cnn", "champion").version


@pytest.mark.timeout(500)
def test_a_killed_search_goes_on(tmp_path, project_env, root) -> None:
    env = {**project_env(tmp_path), "PYTHONPATH": str(root)}
    _killed_then_completed(tmp_path, env, root, [20.0, 14.0])
    _check_whole(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_search_killed_at_twenty_moments_goes_on(tmp_path, project_env, root) -> None:
    env = {**project_env(tmp_path), "PYTHONPATH": str(root)}
    moments = random.Random(5)
    _killed_then_completed(tmp_path, env, root, [moments.uniform(1, 25) for _ in range(20)])
    _check_whole(tmp_path)


# --- several at once


@pytest.mark.timeout(500)
def test_workers_join_and_double_nothing(tmp_path, project_env, root) -> None:
    env = {**project_env(tmp_path), "PYTHONPATH": str(root)}
    first = subprocess.Popen(
        [*_command(3), "--study", "shared"], env=env, cwd=root, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("space"):
            break
    worker = [sys.executable, "-m", "flows.worker", "--study", "shared"]
    others = [
        subprocess.Popen(worker, env=env, cwd=root, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    rest = first.stdout.read()
    assert first.wait(400) == 0, rest
    for other in others:
        said = other.communicate(timeout=100)[0]
        assert other.returncode == 0, said
        assert "done       all 3 trials of its budget are done" in said
    _check_whole(tmp_path)
    client = _client(tmp_path)
    assert len(_runs(client, "tags.`tvmopt.entry_point` = 'worker'")) == 2
