"""Temporary folders of dead processes are removed; other folders stay."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tvmopt import scratch
from tvmopt.scratch import own_temporary_folder, scratch_folder, sweep

_CHILD = """
import sys, time
from tvmopt.scratch import own_temporary_folder
import tempfile
with own_temporary_folder() as folder:
    tempfile.mkdtemp()
    print(folder, flush=True)
    time.sleep(100)
"""


@pytest.fixture
def child(tmp_path):
    """Start a process with a temporary folder in ``tmp_path``; return both."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdout=subprocess.PIPE, text=True, env=env
    )
    assert process.stdout is not None
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.wait()


def test_folder_of_a_killed_process_is_swept(child, tmp_path):
    process, folder = child
    assert sweep(tmp_path) == []  # it is alive
    assert folder.is_dir()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert sweep(tmp_path) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_other_folders_stay(tmp_path):
    (tmp_path / "tvmopt-without-lock").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".lock").touch()
    (tmp_path / "tvmopt-link").symlink_to(elsewhere)
    (tmp_path / "tvmopt-file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".lock").touch()
    locked = tmp_path / "tvmopt-locked-by-a-link"
    locked.mkdir()
    (locked / ".lock").symlink_to(elsewhere / ".lock")
    before = sorted(tmp_path.iterdir())
    assert sweep(tmp_path) == []
    assert sorted(tmp_path.iterdir()) == before


def test_everything_temporary_lies_in_the_own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with own_temporary_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert Path(tempfile.mkdtemp()).parent == folder == Path(os.environ["TMPDIR"])
    assert os.environ["TMPDIR"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("before", ["mkdtemp", "open", "flock", "rename"])
def test_a_folder_is_never_swept_while_it_is_made(tmp_path, monkeypatch, before):
    swept, sweeping = [], []
    place = {"mkdtemp": tempfile, "open": os, "flock": fcntl, "rename": Path}[before]
    call = getattr(place, before)

    def after_a_sweep(*args, **more):
        if not sweeping:  # the sweep itself opens and locks
            sweeping.append(True)
            swept.extend(sweep(tmp_path))
            sweeping.pop()
        return call(*args, **more)

    monkeypatch.setattr(place, before, after_a_sweep)
    with scratch_folder(parent=tmp_path) as folder:
        monkeypatch.undo()
        assert folder.is_dir()
        assert sweep(tmp_path) == []
    assert swept == []


@pytest.mark.parametrize("left", [[], [".lock-new"]])
def test_a_folder_half_made_by_a_killed_process_is_removed(tmp_path, monkeypatch, left):
    folder = tmp_path / "tvmopt-half-made"
    folder.mkdir()
    for name in left:
        (folder / name).touch()
    assert sweep(tmp_path) == []
    monkeypatch.setattr(scratch, "_OLD_S", -1.0)
    assert sweep(tmp_path) == [folder]


def test_folder_goes_when_the_body_fails(tmp_path):
    with pytest.raises(ValueError, match="no"), scratch_folder(parent=tmp_path):
        raise ValueError("no")
    assert list(tmp_path.iterdir()) == []
