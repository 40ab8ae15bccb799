"""Tests of the deferral of SIGINT."""

from __future__ import annotations

import signal
import threading

import pytest

from tvmopt.tune.interrupt import interrupt_deferred


@pytest.fixture(autouse=True)
def usual_handler():
    """Set Python's handler, because SIGINT may be ignored when tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_comes_at_the_end_of_the_block() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), interrupt_deferred():
        signal.raise_signal(signal.SIGINT)
        steps.append("after the signal")
    assert steps == ["after the signal"]


def test_an_interrupt_wins_over_an_error_of_the_block() -> None:
    with pytest.raises(KeyboardInterrupt), interrupt_deferred():
        signal.raise_signal(signal.SIGINT)
        raise ValueError


def test_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupt_deferred():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_are_left_alone() -> None:
    entered = []

    def enter() -> None:
        with interrupt_deferred():
            entered.append(True)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [True]
