"""Limit the time and memory of a process tree."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable

import psutil

from tvmopt.errors import LimitError

_LOOK_S = 0.5
_REAP_S = 5.0


@dataclasses.dataclass(frozen=True)
class Allowance:
    """Time and memory limits of one stage; 0 is no limit.

    Attributes:
        seconds: Wall time.
        memory_mb: Resident memory of the process and its children together, in megabytes.
    """

    seconds: float = 0.0
    memory_mb: float = 0.0

    @property
    def is_limited(self) -> bool:
        """Return whether there is a limit."""
        return self.seconds > 0 or self.memory_mb > 0


class Watch:
    """Watch a process from a thread; kill its process tree when it exceeds a limit.

    Args:
        pid: Its process id.
        allowance: Its limits.
    """

    def __init__(self, pid: int, allowance: Allowance) -> None:
        self._pid, self._allowance = pid, allowance
        self._end = threading.Event()
        self._passed: tuple[str, str] | None = None
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        if self._allowance.is_limited:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self, what: str) -> None:
        """Raise :class:`LimitError` when ``what`` was stopped for passing a limit."""
        if self._passed is not None:
            kind, text = self._passed
            raise LimitError(f"{what} was stopped: {text}", kind)

    def _look(self) -> None:
        start = time.monotonic()
        allowed_s, allowed_mb = self._allowance.seconds, self._allowance.memory_mb
        while not self._end.wait(_LOOK_S):
            if 0 < allowed_s < time.monotonic() - start:
                text = f"it may take {allowed_s:.0f} s, and had not ended by then"
                self._passed = ("timeout", text)
            elif 0 < allowed_mb < resident_mb(self._pid) and allowed_mb < (
                used := proportional_mb(self._pid)
            ):
                text = f"it may use {allowed_mb:.0f} MB of memory, but used {used:.0f} MB"
                self._passed = ("out_of_memory", text)
            if self._passed is not None:
                kill_tree(self._pid)
                return


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process and its descendants, in megabytes (10^6 bytes).

    Memory that several of them share counts once for each.
    """
    return _total_mb(pid, lambda process: process.memory_info().rss)


def proportional_mb(pid: int) -> float:
    """Return the same, but memory that processes share, as forks do, is divided among them.

    That takes the system longer to find out. Where it does not tell, it is the resident memory.
    """

    def used(process: psutil.Process) -> int:
        found = process.memory_full_info()
        return int(getattr(found, "pss", found.rss))

    return _total_mb(pid, used)


def _total_mb(pid: int, used: Callable[[psutil.Process], int]) -> float:
    total = 0
    for process in _tree(pid):
        with contextlib.suppress(psutil.Error):  # it has ended
            total += used(process)
    return total / 1e6


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants."""
    tree = _tree(pid)
    for process in tree:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(tree[1:], timeout=_REAP_S)


def _tree(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []
