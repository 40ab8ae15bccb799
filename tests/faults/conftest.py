"""Restore default signal handling, so that faults reach processes as in a terminal."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def hang_ups_are_heard() -> Iterator[None]:
    """Restore SIGHUP: under ``nohup``, child processes would inherit that it is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
