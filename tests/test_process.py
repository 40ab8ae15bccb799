"""Liveness of processes: by boot id, PID namespace, pid and start time, or by a heartbeat."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from tvmopt.process import Process, ProcessWatch

OWN = Process.own()
#: A machine cloned from this one: the same host name, another boot.
CLONE = dataclasses.replace(OWN, boot="another boot")
#: A container of this machine that has the host's name: the same boot id, other process ids.
CONTAINER = dataclasses.replace(OWN, namespace="1", pid=2, start="3")


class Hand:
    """A fake clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_process_is_told_from_a_later_one_of_the_same_number() -> None:
    watch = ProcessWatch(OWN)
    assert watch.is_alive(OWN, 0)
    assert not watch.is_alive(dataclasses.replace(OWN, start="1"), 0)
    assert Process.from_dict(OWN.to_dict()) == OWN
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not watch.is_alive(dataclasses.replace(OWN, pid=child.pid), 0)


@pytest.mark.parametrize("other", [CLONE, CONTAINER], ids=["cloned machine", "container"])
def test_another_machine_of_our_name_is_dead_only_after_a_watched_silence(other) -> None:
    clock = Hand()
    watch = ProcessWatch(OWN, clock, silent_s=30.0)
    assert watch.is_alive(other, 7)
    for _ in range(20):  # any heartbeat keeps it alive
        clock.now += 9.0
        assert watch.is_alive(other, clock.now)
    beats = clock.now
    for step in range(30):
        clock.now += 1.0
        assert watch.is_alive(other, beats) == (step < 29)
    assert watch.is_alive(other, beats + 1)  # it was suspended, and has resumed


def test_time_in_which_nobody_could_look_is_no_silence() -> None:
    clock = Hand()
    watch = ProcessWatch(OWN, clock, silent_s=90.0)
    watch.is_alive(CLONE, 7)
    clock.now += 3600.0  # the database was unavailable, or this process was stopped
    assert watch.is_alive(CLONE, 7)


def test_records_without_a_namespace_are_of_this_machine_when_the_host_is() -> None:
    old = {"host": OWN.host, "boot": OWN.boot, "pid": OWN.pid, "start": OWN.start}
    assert Process.from_dict(old).shares_pids(OWN)
    assert not Process.from_dict({**old, "host": "elsewhere"}).shares_pids(OWN)
    assert not Process.from_dict({**old, "boot": "another"}).shares_pids(OWN)
