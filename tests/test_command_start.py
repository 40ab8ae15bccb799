"""A time budget counts from the start of the process that a command line started."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tvmopt import command_start, host
from tvmopt.cli import dispatch

_COMMAND = """
import time
time.sleep(1.5)
from tvmopt import command_start
command_start.mark_process()
print(time.monotonic() - command_start.began())
"""


@pytest.fixture(autouse=True)
def unmarked(monkeypatch):
    monkeypatch.setattr(command_start, "_began", None)


def test_a_call_of_a_function_begins_now():
    before = time.monotonic()
    assert before <= command_start.began() <= time.monotonic()


@pytest.mark.skipif(sys.platform != "linux", reason="process starts are read in /proc")
def test_a_command_begins_with_its_process():
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", _COMMAND], capture_output=True, check=True)
    assert 1.4 <= float(done.stdout) <= time.monotonic() - start + 0.1


@pytest.mark.parametrize("ticks", [None, "99999999999999", "-99999999"])
def test_a_wrong_clock_means_now(monkeypatch, ticks):
    """Ticks of no process, of one to come, and of one that began days ago."""
    monkeypatch.setattr(host, "process_start", lambda pid: ticks)
    before = time.monotonic()
    command_start.mark_process()
    assert before <= command_start.began() <= time.monotonic()


def test_a_command_line_marks_its_process(monkeypatch):
    monkeypatch.setattr(dispatch, "run", lambda *_: None)
    dispatch.run_entry("main", [])
    assert command_start._began is not None
