"""``kill -9`` in every stage: no run claims to be finished, and the next command completes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from mlflow import MlflowClient

from tests.mlflow_runs import runs_of

STAGES = ("convert", "tune", "build", "build-untuned_tvm", "evaluate")


def _stage_runs(client: MlflowClient, name: str):
    return runs_of(client, f"attributes.run_name = '{name}'")


def _wait_for(client: MlflowClient, stage: str, process: subprocess.Popen) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if any(r.info.status == "RUNNING" for r in _stage_runs(client, stage)):
            return
        assert process.poll() is None, f"ended before {stage} was seen running"
        time.sleep(0.05)
    raise AssertionError(f"{stage} was never seen running")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killed_in_every_stage_then_completed(tmp_path, project_env, make_store, root, mlflow_run):
    env = {**project_env(tmp_path), "PYTHONPATH": str(root)}
    uri = make_store(tmp_path)
    client = MlflowClient(uri, uri)
    command = [sys.executable, "-m", "mlflow", "run", str(root), "--env-manager", "local"]
    for stage in STAGES:
        process = subprocess.Popen(
            [*command, "-P", "topk=3", "-P", "threads=1"],
            env=env,
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _wait_for(client, stage, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        runs = _stage_runs(client, stage)
        assert [r.info.status for r in runs] == ["RUNNING"]  # no process is left to report more
        assert not any(r.info.status == "FINISHED" for r in _stage_runs(client, "main-digits-cnn"))

    done = mlflow_run(tmp_path, topk=3)
    assert done.returncode == 0, done.stdout + done.stderr
    for stage in STAGES:
        statuses = sorted(r.info.status for r in _stage_runs(client, stage))
        assert statuses == ["FINISHED", "KILLED"]
    parents = sorted(r.info.status for r in _stage_runs(client, "main-digits-cnn"))
    assert parents == ["FINISHED"] + ["KILLED"] * len(STAGES)
    version = client.get_model_version_by_alias("digits-cnn", "champion")
    assert version.version


def test_killed_stage_process_is_a_failed_run(tmp_path, project_env, make_store, root):
    env = {**project_env(tmp_path), "PYTHONPATH": str(root)}
    uri = make_store(tmp_path)
    client = MlflowClient(uri, uri)
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.main"],
        env=env,
        cwd=root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for(client, "convert", process)
    child = _child_of(process.pid)
    os.kill(child, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the convert process was ended by SIGKILL" in err
    (run,) = _stage_runs(client, "convert")
    assert run.info.status == "FAILED"
    assert run.data.tags["tvmopt.failure_class"] == "killed"
    (parent,) = _stage_runs(client, "main-digits-cnn")
    assert parent.info.status == "FAILED"


_SERVER = "tvmopt.stages.fork_server"


def _child_of(parent: int) -> int:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for child in psutil.Process(parent).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                # A fork of the server has its command line.
                if _SERVER in child.cmdline() and _SERVER in child.parent().cmdline():
                    time.sleep(0.2)  # a compiler that the server starts has its own soon
                    if _SERVER in child.cmdline():
                        return child.pid
        time.sleep(0.05)
    raise AssertionError("the stage's process was never seen")
