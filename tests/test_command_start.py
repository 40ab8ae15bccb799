"""A time budget counts from the start of the process that a command line started."""

from __future__ import annotations

import time

import psutil
import pytest

from tvmopt import command_start
from tvmopt.cli import dispatch


@pytest.fixture(autouse=True)
def unmarked(monkeypatch):
    monkeypatch.setattr(command_start, "_began", None)


def test_a_call_of_a_function_begins_now():
    before = time.monotonic()
    assert before <= command_start.began() <= time.monotonic()


def test_a_command_line_begins_with_its_process(monkeypatch):
    """Before this test by as long as the process lives."""
    seen = []
    monkeypatch.setattr(dispatch, "run", lambda *_: seen.append(command_start.began()))
    dispatch.run_entry("main", [])
    alive_s = time.time() - psutil.Process().create_time()
    assert time.monotonic() - seen[0] == pytest.approx(alive_s, abs=0.5)
