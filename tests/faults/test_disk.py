"""Full or read-only disk: a one-line error at once, and the study goes on once space is there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tvmopt.errors import StudyAwayError
from tvmopt.search.budget import Budget
from tvmopt.search.effort import Effort
from tvmopt.search.space import Space
from tvmopt.search.storage import open_storage
from tvmopt.search.study import SearchStudy, open_study
from tvmopt.search.tried import RUNNING

SPACE = Space(("float32",), {}, ("NHWC", "NCHW"), (Effort("default"),))
BUDGET = Budget(0, 0.0)


def _mount(*options: object) -> bool:
    command = ["mount", *map(str, options)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or not _mount("-t", "tmpfs", "-o", "size=1m", "tvmopt-test", folder):
        pytest.skip("needs root that may mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def study(disk) -> Iterator[SearchStudy]:
    """A study on the small disk."""
    storage = open_storage(f"sqlite:///{disk / 'studies.db'}")
    declaration = {"space": SPACE.to_dict(), "objectives": ["latency"]}
    yield open_study(storage, "s", declaration, BUDGET)
    storage.engine.dispose()


def _claim(study: SearchStudy):
    return study.claim(lambda tried: None, BUDGET)


def _check_it_goes_on(study: SearchStudy, claimed) -> None:
    claimed.finish({"p50": 1.0}, {"accuracy_drop": 0.0}, [1.0])
    [record] = study.records()
    assert record.feasible and record.metrics == {"p50": 1.0}


def test_a_full_disk_is_one_line_and_loses_nothing(disk, study) -> None:
    study.beat()
    claimed = _claim(study)
    with (disk / "full").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(StudyAwayError, match="it refused: database or disk is full; cure") as said:
        for number in range(100):  # the last page of the file may still have space
            claimed.note(f"fact {number}", "x" * 2000)
    assert "\n" not in str(said.value)
    (disk / "full").unlink()
    _check_it_goes_on(study, claimed)


def test_a_read_only_disk_is_one_line_and_loses_nothing(disk, study) -> None:
    claimed = _claim(study)
    study._storage.engine.dispose()
    assert _mount("-o", "remount,ro", disk)
    with pytest.raises(StudyAwayError, match="it refused: attempt to write a readonly") as said:
        claimed.note("p50", 1.0)
    assert "\n" not in str(said.value)
    assert [r.state for r in study.records()] == [RUNNING]  # reading goes on
    study._storage.engine.dispose()
    assert _mount("-o", "remount,rw", disk)
    _check_it_goes_on(study, claimed)
