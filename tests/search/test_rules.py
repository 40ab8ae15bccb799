"""Unit tests of limits, budget, Pareto front and verdict."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmopt.errors import ConfigError
from tvmopt.search.budget import Budget, worked_seconds
from tvmopt.search.front import dominates, pareto_front
from tvmopt.search.limits import HELDOUT_DROP, Limits, violation
from tvmopt.search.verdict import (
    BY_ACCURACY,
    BY_LATENCY,
    BY_MEDIAN,
    BY_SIZE,
    Finalist,
    choose,
)

METRICS = {
    "accuracy_drop": 0.02, "library_bytes": 3e6, "peak_memory_mb": 90.0, "latency_ms_p99": 2.0,
}  # fmt: skip


def test_limits_that_are_not_set_constrain_nothing() -> None:
    assert Limits(0.02).violations(METRICS) == {"accuracy_drop": 0.0}
    assert violation(Limits(0.05).violations(METRICS)) == 0


def test_excess_over_a_limit_is_relative() -> None:
    found = Limits(0.01, 2.0, 100.0, 1.0).violations(METRICS)
    assert found == pytest.approx(
        {"accuracy_drop": 1.0, "library_mb": 0.5, "memory_mb": -0.1, "p99_ms": 1.0}
    )
    assert violation(found) == pytest.approx(2.5)


def test_any_positive_value_exceeds_a_limit_of_zero() -> None:
    found = Limits(0.0).violations({"accuracy_drop": 0.001})
    assert found["accuracy_drop"] == pytest.approx(0.1)
    assert Limits(0.0).violations({"accuracy_drop": 0.0})["accuracy_drop"] == 0


def test_unmeasured_values_violate_every_limit() -> None:
    assert Limits(0.1, max_memory_mb=10.0).violations({"accuracy_drop": 0.0})["memory_mb"] == 1.0


def test_the_drop_on_held_out_samples_is_limited_where_it_was_measured() -> None:
    found = Limits(0.02).violations({**METRICS, HELDOUT_DROP: 0.05})
    assert found == pytest.approx({"accuracy_drop": 0.0, HELDOUT_DROP: 1.5})


def test_limits_and_budgets_are_not_negative() -> None:
    with pytest.raises(ConfigError, match="max_library_mb must be at least 0, but got -1"):
        Limits(0.01, max_library_mb=-1.0)
    with pytest.raises(ConfigError, match="trials must be at least 0, but got -3"):
        Budget(-3, 0.0)


def test_overlapping_work_counts_once() -> None:
    assert worked_seconds([]) == 0
    assert worked_seconds([(0, 10), (5, 12), (20, 21), (6, 7)]) == 13


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=8)


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(spans)
def test_worked_time_is_the_length_of_the_union(found) -> None:
    intervals = [(float(start), float(start + length)) for start, length in found]
    seconds = {s for start, length in found for s in range(start, start + length)}
    assert worked_seconds(intervals) == len(seconds)


points = st.lists(st.tuples(*[st.integers(0, 4)] * 3), max_size=12)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(points)
def test_the_front_is_what_nothing_dominates(found) -> None:
    front = pareto_front(found)
    for i, point in enumerate(found):
        beaten = any(dominates(other, point) for other in found)
        assert (i in front) is not beaten


def _finalist(label: str, p50: float, half: float, drop: float = 0.0, size: float = 1e6):
    return Finalist(label, p50, p50 - half, p50 + half, drop, size)


def test_the_fastest_wins_when_no_interval_overlaps_with_its() -> None:
    slow, fast = _finalist("a", 2.0, 0.1), _finalist("b", 1.0, 0.1, drop=0.01)
    verdict = choose([slow, fast])
    assert (verdict.winner, verdict.by) == (fast, BY_LATENCY)
    assert (verdict.equal, verdict.runner_up) == ((fast,), slow)


def test_of_equals_the_more_accurate_wins_then_the_smaller_then_the_faster() -> None:
    equal = [
        _finalist("fast", 1.00, 0.1, drop=0.01),
        _finalist("large", 1.05, 0.1, drop=0.0, size=2e6),
        _finalist("small", 1.06, 0.1, drop=0.0, size=1e6),
        _finalist("slow", 3.0, 0.1, drop=-0.1),
    ]
    verdict = choose(equal)
    assert (verdict.winner.label, verdict.by) == ("small", BY_ACCURACY)
    assert (verdict.equal, verdict.runner_up) == (tuple(equal[:3]), equal[3])
    smaller = choose(equal[1:3])
    assert (smaller.winner.label, smaller.by) == ("small", BY_SIZE)
    faster = choose([_finalist("x", 1.01, 0.1), _finalist("y", 1.0, 0.1)])
    assert (faster.winner.label, faster.by) == ("y", BY_MEDIAN)


def test_one_finalist_is_the_winner() -> None:
    only = _finalist("only", 1.0, 0.1)
    verdict = choose([only])
    assert (verdict.winner, verdict.by, verdict.runner_up) == (only, BY_LATENCY, None)
