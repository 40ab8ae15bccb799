"""A hundred faults at random times in searches of the bundled example."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from .checks import check_folders, check_study, trial_runs

ROOT = Path(__file__).parents[2]
LAYOUTS = ("NHWC", "NCHW", "NCHW8c")
FAULTS = ("kill the group", "kill one process", "terminate", "hang up")
_MARK = "TVMOPT_TEST_FAULTS"
_ENDING_S = 20.0


def _command(study: str) -> list[str]:
    asked = {
        "threads": 1, "dtypes": "float32", "strategies": "default", "repeats": 20, "trials": 3,
        "layouts": ",".join(LAYOUTS), "study": study,
    }  # fmt: skip
    options = [part for k, v in asked.items() for part in (f"--{k}", str(v))]
    return [sys.executable, "-m", "flows.search", *options]


def _left(mark: str) -> list[psutil.Process]:
    """Return the processes of the searches that are still alive."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(_MARK) == mark:
                found.append(process)
        except psutil.Error:  # it ended meanwhile, or belongs to another user
            continue
    return found


def _hit(process: subprocess.Popen, fault: str, chance: random.Random) -> bool:
    """Inject a fault; return whether it killed only the process of a stage."""
    if fault == "kill the group":
        os.killpg(process.pid, signal.SIGKILL)
    elif fault == "terminate":
        process.terminate()
    elif fault == "hang up":
        process.send_signal(signal.SIGHUP)
    else:
        main = psutil.Process(process.pid)
        victim = chance.choice([main, *main.children(recursive=True)])
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            return False
        if victim.pid != process.pid:
            time.sleep(chance.uniform(0.0, 2.0))
            os.killpg(process.pid, signal.SIGKILL)
            return True
    return False


def _kill_at_random(folder: Path, seed: int, faults: int) -> None:
    (folder / "tmp").mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "TVM_"))}
    env |= {
        "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), _MARK: str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"), "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
    }  # fmt: skip
    chance, names, made, killed = random.Random(seed), ["killed-0"], 0, 0
    while made < faults:
        log = (folder / "log.txt").open("a")
        process = subprocess.Popen(
            _command(names[-1]), env=env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
        try:
            process.wait(chance.uniform(1, 16))
            names.append(f"killed-{len(names)}")  # the search has ended
        except subprocess.TimeoutExpired:
            killed += _hit(process, FAULTS[made % len(FAULTS)], chance)
            made += 1
            process.wait(_ENDING_S)
        end = time.monotonic() + _ENDING_S
        while left := _left(str(folder)):
            assert time.monotonic() < end, [p.cmdline() for p in left]
            time.sleep(0.2)
    for name in names:
        done = subprocess.run(
            _command(name), env=env, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    runs = trial_runs(env["MLFLOW_TRACKING_URI"])
    for name in names:
        url = f"sqlite:///{folder / 'tvmopt-studies.db'}"
        killed -= check_study(url, name, runs, len(LAYOUTS) + 1, killed)
    assert "FINISHED" not in runs.values()
    assert _left(str(folder)) == []
    check_folders(folder / "tmp", folder)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_faults_at_random_moments(tmp_path) -> None:
    _kill_at_random(tmp_path, seed=4, faults=100)
