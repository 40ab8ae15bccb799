"""When the command of this process began: a time budget counts imports, as its user does."""

from __future__ import annotations

import os
import time

from tvmopt import host

# Seconds from the start of a process to its command. More is an error of a clock.
_MOST_S = 120.0
_began: float | None = None


def mark_process() -> None:
    """Let the command begin with this process, which does nothing else; on Linux."""
    global _began
    _began = time.monotonic()
    started = host.process_start(os.getpid())
    if started is not None:
        since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        age_s = since_boot_s - int(started) / os.sysconf("SC_CLK_TCK")
        _began -= age_s if 0 <= age_s <= _MOST_S else 0.0


def began() -> float:
    """Return the start of the command, as :func:`time.monotonic` counts.

    That is now, where no process was started for it.
    """
    return time.monotonic() if _began is None else _began
