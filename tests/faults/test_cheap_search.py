"""Random kills, signals and disk errors in searches: no trial is lost, no file or process left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .cheap_search import FAULTS, SPACE, studies
from .checks import check_folders, check_study, trial_runs
from .refusal import Refusal

ROOT = Path(__file__).parents[2]


def _kill_at_random(folder: Path, seed: int, faults: int, seconds: int) -> None:
    for name in ("tmp", "cache", "disk"):
        (folder / name).mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    env |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "TMPDIR": str(folder / "tmp"),
        "XDG_CACHE_HOME": str(folder / "cache"), "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'disk' / 'mlflow.db'}",
        **Refusal(folder / "disk", folder).env,
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

    runs, killed = trial_runs(env["MLFLOW_TRACKING_URI"]), report["faults"]["kill one process"]
    for name in report["studies"]:
        killed -= check_study(studies(folder), name, runs, len(SPACE) + 1, killed)
    assert "FINISHED" not in runs.values()  # no runs except those of the studies
    assert "Traceback" not in log, log
    check_folders(folder / "tmp", folder, folder / "disk")


@pytest.mark.slow  # other files here have a fault each
def test_each_fault_at_a_random_moment(tmp_path) -> None:
    _kill_at_random(tmp_path, seed=1, faults=len(FAULTS), seconds=200)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [2, 3])
def test_two_hundred_faults_at_random_moments(tmp_path, seed: int) -> None:
    _kill_at_random(tmp_path, seed, faults=200, seconds=800)
