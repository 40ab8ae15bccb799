"""When the command of this process began: a time budget counts imports, as its user does."""

from __future__ import annotations

import time

import psutil

_began: float | None = None


def mark_process() -> None:
    """Let the command begin with this process, which does nothing else."""
    global _began
    _began = time.monotonic() - (time.time() - psutil.Process().create_time())


def began() -> float:
    """Return the start of the command, as :func:`time.monotonic` counts.

    That is now, where no process was started for it.
    """
    return time.monotonic() if _began is None else _began
