"""Identify processes that share a store, and tell which of them are alive.

A process of the same boot and PID namespace is looked up in /proc. The host name decides nothing:
cloned machines have the same one. Any other process is alive while its heartbeat counter changes,
as watched with the monotonic clock of the process that asks.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tvmopt import host

#: Seconds without a heartbeat after which a process of another machine or container is dead.
SILENT_S = 90.0
# Most seconds of silence counted between two looks: nobody can beat while the database is away.
_LONGEST_GAP_S = 10.0
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Process:
    """One process, told from any other that may get its number later.

    Attributes:
        host: Name of its machine, for people to read.
        boot: Boot id of its machine.
        pid: Process id.
        start: Its start in clock ticks since boot.
        namespace: Inode of its PID namespace, since containers of one machine share the boot id;
            empty in records of versions that did not write it.
    """

    host: str
    boot: str
    pid: int
    start: str
    namespace: str = ""

    @classmethod
    def own(cls) -> Process:
        """This process."""
        pid = os.getpid()
        start = host.process_start(pid) or ""
        return cls(platform.node(), host.boot_id(), pid, start, pid_namespace())

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Process:
        """Rebuild a process from :meth:`to_dict`."""
        return cls(**data)

    def shares_pids(self, other: Process) -> bool:
        """Whether both see the same process ids: same boot and PID namespace.

        A record without a namespace is compared by host name in its place.
        """
        if self.boot != other.boot:
            return False
        if self.namespace and other.namespace:
            return self.namespace == other.namespace
        return self.host == other.host

    def is_running(self) -> bool:
        """Whether it runs now; only for a process that shares its process ids with this one."""
        return self.start == host.process_start(self.pid)


def die_with_parent(parent: int) -> None:
    """Let the system kill this process when its parent ends; on Linux.

    Args:
        parent: Process id of the parent; if it has ended already, this process exits.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent process is gone")


def pid_namespace() -> str:
    """Inode of this process's PID namespace; empty where the system has none."""
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return ""


@dataclasses.dataclass(frozen=True)
class _Seen:
    beats: float
    at: float
    silent_s: float


class ProcessWatch:
    """Watches heartbeat counters; safe to use from several threads.

    Args:
        own: The process that watches.
        monotonic: Its monotonic clock.
        silent_s: Seconds for which a counter must be seen not to change before its process counts
            as dead.
    """

    def __init__(
        self,
        own: Process,
        monotonic: Callable[[], float] = time.monotonic,
        silent_s: float = SILENT_S,
    ) -> None:
        self._own, self._monotonic, self._silent_s = own, monotonic, silent_s
        self._seen: dict[Process, _Seen] = {}
        self._lock = threading.Lock()

    def is_alive(self, process: Process, beats: float) -> bool:
        """Look at a process; False when it is gone, or was silent for long enough.

        Args:
            process: The process.
            beats: Its heartbeat counter as it is now; 0 when it has none.
        """
        if process.shares_pids(self._own):
            return process.is_running()
        with self._lock:
            now, known = self._monotonic(), self._seen.get(process)
            silent_s = 0.0
            if known is not None and known.beats == beats:
                silent_s = known.silent_s + min(now - known.at, _LONGEST_GAP_S)
            self._seen[process] = _Seen(beats, now, silent_s)
            return silent_s < self._silent_s
