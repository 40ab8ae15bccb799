"""Locks of one machine: a measurement runs alone, and dead processes hold no lock."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from tvmopt.tracking.store.exclusive import alone, lock_folder, turn

_HOLD = (
    "import sys, time\n"
    "from tvmopt.tracking.store.exclusive import turn\n"
    "with turn(sys.argv[1] == 'measure'):\n"
    "    print('in', flush=True)\n"
    "    time.sleep(60)\n"
)


@pytest.fixture(autouse=True)
def own_locks(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def _holder(kind: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, kind], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    return process


def _enters(measuring: bool, within: float) -> bool:
    entered = threading.Event()

    def enter() -> None:
        with turn(measuring):
            entered.set()

    threading.Thread(target=enter, daemon=True).start()
    return entered.wait(within)


@pytest.mark.parametrize(
    ("held", "measuring", "waits"),
    [("measure", True, True), ("measure", False, True), ("work", True, True),
     ("work", False, False)],
)  # fmt: skip
def test_which_turns_exclude_each_other(held: str, measuring: bool, waits: bool) -> None:
    holder = _holder(held)
    try:
        assert _enters(measuring, 1.0) is not waits
    finally:
        holder.kill()
        holder.wait()
    assert _enters(measuring, 10.0), "the dead hold nothing"


def test_a_waiting_measurement_precedes_later_turns() -> None:
    order: list[str] = []
    first = threading.Event()
    go = threading.Event()

    def run(name: str, measuring: bool, entered: threading.Event | None = None) -> None:
        with turn(measuring):
            order.append(name)
            if entered is not None:
                entered.set()
                go.wait(20)

    threads = [threading.Thread(target=run, args=("work", False, first))]
    threads[0].start()
    assert first.wait(10)
    for name, measuring in (("measure", True), ("later work", False)):
        threads.append(threading.Thread(target=run, args=(name, measuring)))
        threads[-1].start()
        time.sleep(0.3)
    assert order == ["work"]
    go.set()
    for thread in threads:
        thread.join(20)
    assert order == ["work", "measure", "later work"]


def test_waiting_is_reported() -> None:
    holder = _holder("measure")
    said: list[str] = []
    threading.Timer(1.0, holder.kill).start()
    with turn(False, said.append):
        pass
    holder.wait()
    assert said == ["waiting for a measurement here, so that neither disturbs the other"]


def test_a_named_lock_has_one_holder() -> None:
    done, said = [], []

    def later() -> None:
        with alone("a study", said.append):
            done.append("later")

    thread = threading.Thread(target=later)
    with alone("a study"), alone("another study"):
        thread.start()
        time.sleep(0.3)
        done.append("first")
    thread.join(10)
    assert done == ["first", "later"]
    assert said == ["waiting for another process to do the same"]


def test_locks_are_the_users_own() -> None:
    with turn(True):
        assert lock_folder().stat().st_mode & 0o077 == 0
        for lock in lock_folder().glob("*.lock"):
            assert lock.stat().st_mode & 0o077 == 0
