"""Tests of GPU benchmark timing: contenders are interleaved in an order without bias."""

from __future__ import annotations

import itertools

from benchmarks.cuda_timing import time_interleaved


def _timers(order: list[str], **times: float):
    def timer(name: str, ms: float):
        def run() -> float:
            order.append(name)
            return ms

        return run

    return {name: timer(name, ms) for name, ms in times.items()}


def test_a_slow_contender_is_timed_apart():
    order: list[str] = []
    found = time_interleaved(_timers(order, slow=40.0, one=1.0, two=1.1))
    assert len(found["one"]) == len(found["two"]) > len(found["slow"]) > 2
    after = [b for a, b in itertools.pairwise(order[3:]) if a == "slow"]
    assert set(after) == {"slow"}


def test_the_predecessor_of_each_contender_varies():
    order: list[str] = []
    time_interleaved(_timers(order, one=1.0, two=1.0, three=1.0))
    before = [a for a, b in itertools.pairwise(order[3:]) if b == "two"]
    assert 0.4 < before.count("one") / len(before) < 0.6


def test_one_contender():
    assert set(time_interleaved(_timers([], one=1.0))) == {"one"}
