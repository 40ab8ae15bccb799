"""Tests of numbers that a fork of the process computes."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

import pytest

from tvmopt import forked as module
from tvmopt import host
from tvmopt.forked import forked, run_all


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """Let there be two cores, and forks."""
    monkeypatch.setattr(host, "usable_cores", lambda: 2)
    monkeypatch.setattr(module, "_is_allowed", True)


def _running() -> set[str]:
    """Return the process ids of the children of this process."""
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


@pytest.fixture
def forks():
    """Return a function that lists the children that the test has started."""
    before = _running()
    return lambda: sorted(_running() - before)


def test_the_number_is_exact_and_of_another_process(forks):
    with forked(lambda: os.getpid() + 0.1) as result:
        [child] = forks()
        assert result() == int(child) + 0.1


def test_both_work_at_once():
    start = time.perf_counter()
    with forked(lambda: time.sleep(1.0) or 2.0) as result:
        time.sleep(1.0)
        assert result() == 2.0
    assert time.perf_counter() - start < 1.8


def test_an_error_is_raised_here(forks):
    def fails() -> float:
        raise KeyError("layer")

    with forked(fails) as result, pytest.raises(KeyError, match="layer"):
        result()
    assert forks() == []


def test_what_the_fork_cannot_compute_is_computed_here():
    own = os.getpid()

    def dies_elsewhere() -> float:
        if os.getpid() != own:
            os.kill(os.getpid(), 9)
        return 3.0

    with forked(dies_elsewhere) as result:
        assert result() == 3.0


def test_a_fork_that_hangs_is_left(monkeypatch, forks):
    monkeypatch.setattr(module, "_LONGEST_S", 0.1)
    own = os.getpid()
    with forked(lambda: 4.0 if os.getpid() == own else time.sleep(60)) as result:
        assert result() == 4.0
    assert forks() == []


@pytest.mark.parametrize(("allowed", "count"), [(True, 1), (False, 2)])
def test_without_a_core_or_leave_it_is_computed_here(monkeypatch, allowed, count):
    monkeypatch.setattr(host, "usable_cores", lambda: count)
    monkeypatch.setattr(module, "_is_allowed", allowed)
    with forked(os.getpid) as result:
        assert result() == os.getpid()


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_every_task_runs_once(tmp_path, monkeypatch, cores, forks):
    monkeypatch.setattr(host, "usable_cores", lambda: cores)

    def task(number):
        with (tmp_path / str(number)).open("a") as file:
            file.write(str(os.getpid()))

    run_all([functools.partial(task, number) for number in range(7)])
    pids = [int((tmp_path / str(number)).read_text()) for number in range(7)]
    assert len(set(pids)) == (1 if cores == 1 else 7)
    assert forks() == []


def test_the_error_of_a_task_is_raised_here_and_no_fork_is_left(forks):
    def fails():
        raise KeyError("kernel")

    tasks = [lambda: None, fails, lambda: time.sleep(60)]
    start = time.perf_counter()
    with pytest.raises(KeyError, match="kernel"):
        run_all(tasks)
    assert time.perf_counter() - start < 30
    assert forks() == []
