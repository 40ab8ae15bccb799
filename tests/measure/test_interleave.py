"""Interleaved timing: rotation, early stopping, quartiles."""

from __future__ import annotations

import pytest

from tvmopt.measure.interleave import quartile, rotated, time_interleaved


def test_each_is_the_first_in_turn() -> None:
    assert [rotated("abc", turn) for turn in range(4)] == [
        ["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]
    ]  # fmt: skip


def test_one_and_none() -> None:
    assert rotated(["a"], 5) == ["a"]
    assert rotated([], 5) == []


class Clock:
    """A clock that only kernels move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def kernel(self, name: str, seconds: float, first: float | None = None):
        spent = [seconds if first is None else first]

        def call(times: int) -> float:
            self.calls += [name] * times
            taken = spent[0]
            self.now += times * taken
            spent[0] = seconds
            return taken

        return call


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_losers_drop_out_early(clock: Clock) -> None:
    times = {0: 1e-3, 1: 1.02e-3, 2: 1.2e-3, 3: 5e-3}
    kernels = {n: clock.kernel(str(n), seconds) for n, seconds in times.items()}
    result = time_interleaved(kernels)
    for place, seconds in times.items():
        assert result[place][0] == pytest.approx(seconds * 1e6)
    rounds = [result[place][1] for place in times]
    assert rounds[3] == 3  # five times as slow
    assert rounds[3] < rounds[2] < rounds[0]
    assert rounds[0] == rounds[1] > 8


def test_rounds_are_interleaved_and_begin_with_another_kernel_each(clock: Clock) -> None:
    time_interleaved({n: clock.kernel(str(n), 1e-3) for n in range(3)})
    assert clock.calls[:9] == ["0", "1", "2", "1", "2", "0", "2", "0", "1"]


def test_rough_timing_ends_early(clock: Clock) -> None:
    kernels = {n: clock.kernel(str(n), seconds) for n, seconds in enumerate((1e-3, 5e-3))}
    result = time_interleaved(kernels, rounds=6)
    assert [rounds for _, rounds in result.values()] == [6, 3]


def test_a_kernel_is_timed_for_a_bounded_time(clock: Clock) -> None:
    time_interleaved({0: clock.kernel("slow", 0.5)})
    assert clock.calls.count("slow") <= 3
    clock.now, before = 0.0, len(clock.calls)
    time_interleaved({0: clock.kernel("fast", 1e-7)})
    assert clock.now < 0.1
    assert len(clock.calls) - before > 100  # a round is many calls of it


def test_the_first_call_warms_up_and_is_not_counted(clock: Clock) -> None:
    [(latency_us, _)] = time_interleaved({0: clock.kernel("k", 1e-3, first=0.3)}).values()
    assert latency_us == pytest.approx(1000.0)


def test_no_kernels_no_times(clock: Clock) -> None:
    assert time_interleaved({}) == {}


@pytest.mark.parametrize(
    ("values", "expected"),
    [([9.0], 9.0), ([9.0, 1.0], 1.0), ([9.0, 4.0, 1.0, 3.0, 2.0], 2.0), ([0.0, 5.0, 5.0], 5.0)],
)
def test_quartile(values: list[float], expected: float) -> None:
    assert quartile(values) == expected
