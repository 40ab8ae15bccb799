"""Tests of interleaved latency measurement: sample counts, time limit, rotating order."""

from __future__ import annotations

from collections import Counter

import pytest

from tvmopt.evaluate import latency
from tvmopt.evaluate.latency import interleave


class Clock:
    """Fake module ``time``: time passes only in ``sleep``."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(latency, "time", clock)
    return clock


def test_every_contender_gets_every_sample():
    calls = Counter()
    contenders = {name: (lambda name=name: calls.update([name])) for name in "abc"}
    samples = interleave(contenders, repeats=25, time_limit_s=5)
    assert {name: len(values) for name, values in samples.items()} == dict.fromkeys("abc", 25)
    # two calls to plan, and one warm-up call in each of three rounds
    assert calls == dict.fromkeys("abc", 2 + 3 + 25)
    assert all(value >= 0 for values in samples.values() for value in values)


def test_order_rotates_and_turns_do_not_mix():
    turns = []

    def call(name):
        if not turns or turns[-1] != name:
            turns.append(name)

    interleave({n: (lambda n=n: call(n)) for n in "abc"}, repeats=30, time_limit_s=5)
    planning, rounds = turns[:3], turns[3:]
    assert planning == ["a", "b", "c"]
    assert rounds == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]


def test_samples_are_the_times_of_the_calls(clock):
    samples = interleave({"a": lambda: clock.sleep(0.003)}, repeats=5, time_limit_s=5)
    assert samples["a"] == pytest.approx([0.003] * 5)


def test_slow_contender_gets_fewer_samples_the_fast_one_all(clock):
    samples = interleave(
        {"slow": lambda: clock.sleep(0.02), "fast": lambda: None}, repeats=60, time_limit_s=0.1
    )
    assert len(samples["slow"]) in (4, 5)  # as 0.1 / 0.02 is rounded
    assert len(samples["fast"]) == 60


def test_very_slow_contender_is_called_no_more_than_needed(clock):
    calls = []
    samples = interleave(
        {"slow": lambda: (calls.append(1), clock.sleep(0.02)), "fast": lambda: None},
        repeats=40,
        time_limit_s=0.01,
    )
    assert len(samples["slow"]) == 3
    assert len(calls) == 2 + 3


def test_samples_of_a_slow_contender_are_spread_over_the_rounds(clock):
    turns = []
    interleave(
        {
            "slow": lambda: (turns.append("slow"), clock.sleep(0.01)),
            "fast": lambda: turns.append("fast"),
        },
        repeats=100,
        time_limit_s=0.05,
    )
    counted = [i / len(turns) for i, name in enumerate(turns) if name == "slow"][2:]
    assert counted[0] < 0.2
    assert counted[-1] > 0.8


def test_progress_reaches_the_end():
    seen = []
    interleave({"a": lambda: None}, 25, 5, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_failure_of_a_contender_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        interleave({"a": lambda: 1 / 0}, 5, 1)
