"""Tests of interleaved timing: rotation, blocks of calls, and intervals, on a fake clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.interleave import geometric_mean, interleave, short_turns


class FakeClock:
    """A clock that only calls of `contender` advance."""

    def __init__(self) -> None:
        self.now = 0.0
        self.called: list[str] = []

    def __call__(self) -> float:
        return self.now

    def contender(self, name: str, *seconds: float):
        durations = itertools.cycle(seconds)

        def call() -> None:
            self.called.append(name)
            self.now += next(durations)

        return call

    def turns(self) -> list[tuple[str, int]]:
        """Return the names called, each with its count of calls in a row."""
        return [(name, len(list(calls))) for name, calls in itertools.groupby(self.called)]


def test_a_block_settles_for_10_ms_then_counts_for_80_ms():
    clock = FakeClock()
    found = interleave({"a": clock.contender("a", 0.001)}, time_limit_s=9, rounds=1, clock=clock)
    assert clock.now == pytest.approx(0.090, abs=0.002)
    assert found["a"].calls in (80, 81)  # the clock accumulates rounded steps
    assert found["a"].median == pytest.approx(1.0)


def test_a_long_call_settles_once_and_counts_once():
    clock = FakeClock()
    found = interleave({"a": clock.contender("a", 0.5)}, time_limit_s=9, rounds=1, clock=clock)
    assert clock.called == ["a", "a"]
    assert found["a"].calls == 1


def test_a_call_of_30_ms_settles_twice_and_counts_three_times():
    clock = FakeClock()
    interleave({"a": clock.contender("a", 0.030)}, time_limit_s=9, rounds=1, clock=clock)
    assert len(clock.called) == 2 + 3


def test_settling_calls_do_not_count():
    clock = FakeClock()
    # Cold start: the first call of every block of 2 + 3 takes ten times as long.
    slow_start = clock.contender("a", 0.3, 0.03, 0.03, 0.03)
    found = interleave({"a": slow_start}, time_limit_s=9, rounds=2, clock=clock)
    assert found["a"].median == pytest.approx(30)
    assert (found["a"].low, found["a"].high) == (pytest.approx(30), pytest.approx(30))


def test_the_order_rotates():
    clock = FakeClock()
    names = ("a", "b", "c")
    contenders = {name: clock.contender(name, 0.1) for name in names}
    interleave(contenders, time_limit_s=9, rounds=3, clock=clock)
    # The rounds are a b c, b c a and c a b; each contender settles once and counts once.
    assert clock.called == [name for name in "abcbcacab" for _ in range(2)]


def test_no_round_begins_after_the_limit():
    clock = FakeClock()
    contenders = {name: clock.contender(name, 0.1) for name in ("a", "b")}
    found = interleave(contenders, time_limit_s=0.5, rounds=50, clock=clock)
    assert {timing.rounds for timing in found.values()} == {2}  # 0.4 s each


def test_a_contender_that_has_spent_its_budget_sits_out():
    clock = FakeClock()
    contenders = {"fast": clock.contender("fast", 0.001), "slow": clock.contender("slow", 5.0)}
    found = interleave(
        contenders, time_limit_s=2, rounds=6, budgets_s={"slow": 3.0, "absent": 1.0}, clock=clock
    )
    assert (found["fast"].rounds, found["slow"].rounds) == (6, 1)
    assert found["slow"].median == pytest.approx(5000)


def test_the_interval_is_that_of_the_round_medians():
    clock = FakeClock()
    # One call per block counts, so a round's median is that call: 100, 200, ... 1000 ms.
    durations = [d for n in range(1, 11) for d in (0.1, n / 10)]
    found = interleave(
        {"a": clock.contender("a", *durations)}, time_limit_s=99, rounds=10, clock=clock
    )["a"]
    assert found.median == pytest.approx(550)
    assert (found.low, found.high) == (pytest.approx(200), pytest.approx(900))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1e-4, 0.3), min_size=1, max_size=5), st.integers(1, 8))
def test_everyone_has_a_turn_in_every_round(durations, rounds):
    clock = FakeClock()
    contenders = {str(n): clock.contender(str(n), d) for n, d in enumerate(durations)}
    found = interleave(contenders, time_limit_s=1e9, rounds=rounds, clock=clock)
    for duration, timing in zip(durations, found.values(), strict=True):
        assert timing.rounds == rounds
        assert timing.calls >= rounds
        assert timing.low <= timing.high
        assert timing.median == pytest.approx(duration * 1e3, rel=1e-3)


def test_rounds_must_be_positive():
    with pytest.raises(ValueError, match="rounds must be at least 1, but got 0"):
        interleave({}, time_limit_s=1, rounds=0)


def test_geometric_mean():
    assert geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None


def test_short_turns_give_the_median_wall_time_and_the_least_cpu_time():
    wall, cpu = FakeClock(), FakeClock()
    slow, quick = wall.contender("slow", 0.002), wall.contender("quick", 0.0001)
    work = cpu.contender("cpu", 0.0007, 0.0005, 0.0009)
    found = short_turns(
        {"slow": lambda: (slow(), work()), "quick": quick}, turns=7, clock=wall, cpu_clock=cpu
    )
    assert found["slow"].median == pytest.approx(2.0)
    assert found["slow"].least_cpu == pytest.approx(0.5)
    assert found["quick"].median == pytest.approx(0.1)
    assert found["quick"].least_cpu == 0
    # One call of 2 ms is a turn, and 4 of 0.1 ms; each turn follows a call that does not count.
    assert wall.turns()[-4:] == [("slow", 2), ("quick", 5)] * 2


def test_short_turns_need_a_turn():
    with pytest.raises(ValueError, match="turns must be at least 1, but got 0"):
        short_turns({"a": lambda: None}, turns=0)
