"""Sessions of a study: heartbeats of the processes that work on it, and the time they worked."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable

import optuna

from tvmopt.process import Process, ProcessWatch
from tvmopt.search.budget import worked_seconds
from tvmopt.search.patience import patient

_SESSION = "session:"


@dataclasses.dataclass(frozen=True)
class Clock:
    """Clocks of a process.

    Attributes:
        wall: Seconds since the epoch; it may be set back or forth at any time.
        monotonic: Seconds that nobody can set. It stands still while the machine is suspended, so
            that a machine that sleeps spends no budget.
    """

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class Sessions:
    """Sessions of all processes of a study, one of them this process's; user attributes hold them.

    Args:
        study: The study.
        process: This process.
        clock: Its clocks.
        silent_s: Seconds without a heartbeat after which a process of another machine is dead.
    """

    def __init__(
        self, study: optuna.Study, process: Process, clock: Clock, silent_s: float
    ) -> None:
        self._study, self._process, self._clock = study, process, clock
        self._key = _SESSION + uuid.uuid4().hex[:12]
        self._watch = ProcessWatch(process, clock.monotonic, silent_s)
        self._beats = 0
        self.count_from(clock.monotonic())

    def count_from(self, began: float) -> None:
        """Start this session's time at ``began`` of the monotonic clock."""
        self._began = began
        self._started = self._clock.wall() - (self._clock.monotonic() - began)

    @patient
    def beat(self) -> None:
        """Write this process's heartbeat, and read the others' heartbeats.

        The end of a session is its start by the wall clock, which orders sessions, and the
        seconds since then by the monotonic clock.
        """
        self._beats += 1
        end = self._started + self._clock.monotonic() - self._began
        data = [self._started, end, self._process.to_dict(), self._beats]
        self._study.set_user_attr(self._key, data)
        for process, beats in self.heartbeats().items():
            self.is_alive(process, beats)

    def heartbeats(self) -> dict[Process, float]:
        """Return the sum of the heartbeat counters of each process of the study."""
        found: dict[Process, float] = {}
        for key, value in self._study.user_attrs.items():
            if key.startswith(_SESSION):
                process = Process.from_dict(value[2])
                # Older versions wrote no counter; what they wrote changes with each beat, too.
                found[process] = found.get(process, 0.0) + value[-1 if len(value) > 3 else 1]
        return found

    def is_alive(self, process: Process, beats: float) -> bool:
        """Return whether a process is alive, given the sum of its heartbeat counters."""
        return self._watch.is_alive(process, beats)

    @patient
    def worked_s(self) -> float:
        """Return the seconds in which at least one process worked on the study."""
        attrs = self._study.user_attrs
        found = [tuple(v[:2]) for k, v in attrs.items() if k.startswith(_SESSION)]
        return worked_seconds(found)
