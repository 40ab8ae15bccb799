"""EIO, ENOSPC and EROFS from the disk: a one-line error without a traceback, no data lost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from .refusal import Refusal

ROOT = Path(__file__).parents[2]
NUMBERS = (errno.EIO, errno.ENOSPC, errno.EROFS)
_STUDY = """
import os, sys
from pathlib import Path
from tvmopt.errors import StudyAwayError
from tvmopt.search.budget import Budget
from tvmopt.search.effort import Effort
from tvmopt.search.space import Space
from tvmopt.search.storage import open_storage
from tvmopt.search.study import open_study

folder, flag = Path(sys.argv[1]), Path(os.environ["REFUSE_FLAG"])
space, budget = Space(("float32",), {}, ("NHWC", "NCHW"), (Effort("default"),)), Budget(0, 0.0)
storage = open_storage(f"sqlite:///{folder / 'studies.db'}")
study = open_study(storage, "s", {"space": space.to_dict(), "objectives": ["latency"]}, budget)
claimed = study.claim(lambda tried: None, budget)
for number in sys.argv[2:]:
    flag.write_text(number)
    try:
        claimed.note("fact", number)
        print("nothing was refused")
    except StudyAwayError as error:
        print(error)
    flag.unlink()
claimed.finish({"p50": 1.0}, {"accuracy_drop": 0.0}, [1.0])
[record] = study.records()
print(record.feasible, record.metrics)
"""


@pytest.fixture
def refusal(tmp_path) -> Refusal:
    (tmp_path / "disk").mkdir()
    return Refusal(tmp_path / "disk", tmp_path)


def _env(tmp_path: Path, refusal: Refusal) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    (tmp_path / "tmp").mkdir(exist_ok=True)
    return {
        **kept, **refusal.env, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"), "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'disk' / 'mlflow.db'}",
    }  # fmt: skip


def test_a_study_says_one_line_and_goes_on_when_the_disk_does(tmp_path, refusal) -> None:
    command = [sys.executable, "-c", _STUDY, str(tmp_path / "disk"), *map(str, NUMBERS)]
    done = subprocess.run(
        command, env=_env(tmp_path, refusal), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *refused, last = done.stdout.splitlines()
    assert [line.partition("it refused: ")[2].partition(";")[0] for line in refused] == [
        "disk I/O error", "database or disk is full", "disk I/O error",
    ]  # fmt: skip
    assert last == "True {'p50': 1.0}"


@pytest.mark.slow  # the test below has a study
@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, pytest.param(errno.EIO, marks=pytest.mark.slow)],
    ids=errno.errorcode.get,
)
def test_a_command_says_one_line_and_the_next_one_goes_on(tmp_path, refusal, number) -> None:
    env = _env(tmp_path, refusal)
    command = [sys.executable, "-m", "flows.promote", "--name", "none"]
    refusal.begin(number)
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    refusal.end()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "disk I/O error" in line or "disk is full" in line or "No space left" in line
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "error: name must be a registered model (none)" in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list((tmp_path / "disk").glob(".tvmopt-*")) == []
    uri = env["MLFLOW_TRACKING_URI"]
    assert len(MlflowClient(uri, uri).search_experiments()) == 1
