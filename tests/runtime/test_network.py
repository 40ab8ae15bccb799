"""Replay of the launches of a network: recorded once, in its own thread."""

from __future__ import annotations

import gc
import threading
from typing import ClassVar

import pytest

from tvmopt.runtime import network as module
from tvmopt.runtime.network import RecordedRun


class FakeStream:
    """A fake stream: recording calls the function once, and replays are counted."""

    made: ClassVar[list[FakeStream]] = []

    def __init__(self) -> None:
        self.played = self.waited = 0
        FakeStream.made.append(self)

    def launching(self):
        import contextlib

        return contextlib.nullcontext()

    def wait(self) -> None:
        self.waited += 1

    def record(self, run, count: int = 1):
        run()

        def play() -> None:
            self.played += 1

        return play

    def seconds(self, run) -> float:
        before = self.played
        run()
        return 0.5 * (self.played - before)


@pytest.fixture
def stream(monkeypatch):
    import tvmopt.device.cuda_graph

    FakeStream.made.clear()
    monkeypatch.setattr(tvmopt.device.cuda_graph, "Stream", FakeStream)
    return FakeStream.made


def test_recorded_once_in_a_thread_of_its_own(stream):
    threads = []

    def run():
        threads.append(threading.current_thread())
        return "outputs"

    network = RecordedRun(run)
    assert not threads
    assert network() == network() == "outputs"
    others = [threading.Thread(target=network) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert len(stream) == 1 and stream[0].played == 5
    assert len(set(threads)) == 1 and threads[0] is not threading.current_thread()


def test_launch_does_not_wait(stream):
    network = RecordedRun(lambda: None)
    network.launch()
    before = stream[0].waited
    network.launch()
    assert stream[0].waited == before and stream[0].played == 2
    assert network.seconds(4) == 0.5


def test_a_failure_is_reported_and_retried(stream):
    calls = iter([RuntimeError("no memory")])

    def run():
        error = next(calls, None)
        if error:
            raise error
        return 1

    network = RecordedRun(run)
    with pytest.raises(RuntimeError, match="no memory"):
        network()
    assert network() == 1


def test_the_thread_ends_with_it(stream):
    before = set(threading.enumerate())
    network = RecordedRun(lambda: None)
    network()
    [thread] = set(threading.enumerate()) - before
    del network
    gc.collect()
    thread.join(5.0)
    assert not thread.is_alive()


def test_the_pass_and_the_runtime_share_the_name_of_storages():
    from tvmopt.transform.lift_storage import STORAGES

    assert STORAGES is module.STORAGES
