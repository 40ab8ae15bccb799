"""A search on a pretended GPU that is killed three times loses no trial and makes none twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.mlflow_runs import client_of, runs_of

FAKE = Path(__file__).parents[1] / "fake_gpu"
_TRIALS = 4
# ``tests/faults/test_cheap_search.py`` kills searches at random moments by default, and
# ``test_gpu_search.py`` goes on with one.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _kill_at(command: list[str], env: dict[str, str], root: Path, line: str) -> None:
    """Start a search, and kill all of its processes once it prints ``line``."""
    said = []
    with subprocess.Popen(
        command, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for text in process.stdout:
            said.append(text)
            if text.startswith(line):
                os.killpg(process.pid, signal.SIGKILL)
                return
    raise AssertionError(f"the search ended without {line!r}: {''.join(said)}")


def test_a_killed_search_on_a_gpu_goes_on(
    project_env, search_command, make_store, store, tmp_path, root
) -> None:
    make_store(tmp_path)
    env = {
        **project_env(tmp_path),
        "PYTHONPATH": os.pathsep.join(map(str, (FAKE, root))),
        "PYTHONUNBUFFERED": "1",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    command = search_command(
        target="cuda", threads=1, dtypes="float32,float16", layouts="NHWC", topk=1,
        strategies="default,fast", trials=_TRIALS, sensitivity_time=6, repeats=20, study="killed",
    )  # fmt: skip
    for number in range(3):
        _kill_at(command, env, root, f"trial {number}")
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gone on with: " in done.stdout
    found = store(tmp_path)
    assert found.champion().tags["target"] == "nvidia-a100"
    runs = runs_of(client_of(env["MLFLOW_TRACKING_URI"]))
    assert not [run.info.run_id for run in runs if run.info.status == "RUNNING"]
    finished = [run for run in found.trials() if run.info.status == "FINISHED"]
    choices = Counter(
        json.dumps(
            {key: run.data.params.get(key) for key in ("dtype", "layout", "effort", "skip_layers")},
            sort_keys=True,
        )
        for run in finished
    )
    assert set(choices.values()) == {1}, choices
    assert len(finished) >= _TRIALS
