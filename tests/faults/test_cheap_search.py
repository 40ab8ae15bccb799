"""Searches that are killed and stopped at random: nothing is lost, done twice or left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import optuna
import pytest
from mlflow import MlflowClient
from optuna.trial import TrialState

from .cheap_search import FAULTS, SPACE, studies

ROOT = Path(__file__).parents[2]
#: To be set when commands remove the temporary folders of killed ones.
FOLDERS_ARE_SWEPT = False


def _check_study(folder: Path, name: str, runs: dict[str, str], killed_stages: int) -> int:
    """One end for every choice, and runs that say the same; returns how many stages were killed."""
    study = optuna.load_study(study_name=name, storage=studies(folder))
    trials = study.get_trials()
    assert not [t.number for t in trials if t.state == TrialState.RUNNING]
    void = ("orphaned", "interrupted", "duplicate")
    ended = [t for t in trials if t.user_attrs.get("failure_class") not in void]
    failed = [t.user_attrs["failure_class"] for t in ended if t.state == TrialState.FAIL]
    assert failed == ["killed"] * len(failed)
    assert len(failed) <= killed_stages
    choices = Counter(json.dumps(t.user_attrs["choice"], sort_keys=True) for t in ended)
    assert set(choices.values()) == {1}, choices
    assert len(choices) == len(SPACE) + 1  # and the baseline
    for trial in ended:
        status = runs.pop(trial.user_attrs["run_id"])
        if trial.state == TrialState.COMPLETE:
            assert status == "FINISHED"
        else:
            assert status in ("FAILED", "KILLED")
    return len(failed)


def _kill_at_random(folder: Path, seed: int, faults: int, seconds: int) -> None:
    for name in ("tmp", "cache"):
        (folder / name).mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    env |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "TMPDIR": str(folder / "tmp"),
        "XDG_CACHE_HOME": str(folder / "cache"), "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.faults.cheap_search", folder, str(seed), str(faults)]
    done = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
    )
    log = (folder / "log.txt").read_text()
    assert done.returncode == 0, done.stderr + log
    report = json.loads(done.stdout.splitlines()[-1])
    assert sum(report["faults"].values()) == faults
    assert set(report["faults"]) == set(FAULTS)
    assert report["left"] == []  # no process outlives its search

    client = MlflowClient(env["MLFLOW_TRACKING_URI"])
    ids = [e.experiment_id for e in client.search_experiments()]
    found = client.search_runs(ids, max_results=5000)
    assert not [r for r in found if r.info.status == "RUNNING"]
    trials = {r.info.run_id: r.info.status for r in found if "tvmopt.trial" in r.data.tags}
    left = report["faults"]["kill one process"]
    for name in report["studies"]:
        left -= _check_study(folder, name, trials, left)
    assert "FINISHED" not in trials.values()  # none but those that the studies know
    # A stage that is killed is one line; what is no TvmoptError would be a traceback.
    assert "Traceback" not in log, log
    if FOLDERS_ARE_SWEPT:
        assert list((folder / "tmp").glob("*tvmopt-*")) == []


def test_twenty_faults_at_random_moments(tmp_path) -> None:
    _kill_at_random(tmp_path, seed=1, faults=20, seconds=200)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [2, 3])
def test_two_hundred_faults_at_random_moments(tmp_path, seed: int) -> None:
    _kill_at_random(tmp_path, seed, faults=200, seconds=800)
