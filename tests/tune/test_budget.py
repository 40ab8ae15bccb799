"""Tests of the budget: trials and time per task."""

from __future__ import annotations

import pytest

from tvmopt.tune.budget import Deadline, Roofline, estimated_us, plan_effort, priority


def test_small_budgets_get_small_batches_and_little_search() -> None:
    small, large = plan_effort(16, 0, 20), plan_effort(5000, 0, 20)
    assert small.batch < large.batch
    assert small.population < large.population
    assert plan_effort(0, 0, 0).batch >= 1


def test_a_short_time_limits_the_effort_like_few_trials() -> None:
    assert plan_effort(100_000, 10, 20) == plan_effort(20, 0, 20)


def test_the_task_with_most_time_to_win_goes_first() -> None:
    def rank(**changes) -> float:
        base = {
            "weight": 1,
            "latency_us": 100.0,
            "attainable_us": 10.0,
            "rounds": 1,
            "stale_rounds": 0,
        }
        return priority(**(base | changes))

    assert rank(weight=2) > rank()
    assert rank(latency_us=200.0) > rank()
    assert rank(attainable_us=90.0) < rank()
    assert rank(rounds=5) < rank()
    assert rank(stale_rounds=2) < rank()
    assert rank(attainable_us=1000.0) > 0


def test_the_roofline_is_the_slower_of_arithmetic_and_memory() -> None:
    roofline = Roofline(flops_per_us=1000.0, bytes_per_us=10.0)
    assert roofline.attainable_us(flops=5000.0, size=10.0) == pytest.approx(5.0)
    assert roofline.attainable_us(flops=5000.0, size=100.0) == pytest.approx(10.0)
    assert estimated_us(0.0, 1e6) > estimated_us(0.0, 1e3) > 0


def test_a_deadline_of_zero_never_expires() -> None:
    assert not Deadline(0).expired
    assert not Deadline(1000).expired
    assert Deadline(1e-9).expired
    assert Deadline(1e-9).used(0.3)
