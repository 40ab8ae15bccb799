"""Shares of the time budget of a search."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmopt.search import shares
from tvmopt.search.shares import Share


@pytest.mark.parametrize(
    ("budget_s", "seconds"), [(0.0, 50.0), (10.0, 5.0), (100.0, 10.0), (900.0, 50.0)]
)
def test_a_share_lies_between_its_bounds(budget_s: float, seconds: float) -> None:
    assert Share(0.1, 5.0, 50.0).seconds(budget_s) == seconds


def test_a_share_without_an_upper_bound_is_no_limit_without_a_budget() -> None:
    assert shares.CALIBRATION.seconds(0.0) == math.inf


@given(st.floats(300.0, 1e6))
def test_most_of_the_budget_is_left_for_trials(budget_s: float) -> None:
    parts = (shares.BASELINE, shares.ANALYSIS, shares.CALIBRATION, shares.ENDING)
    assert sum(share.seconds(budget_s) for share in parts) <= 0.4 * budget_s
    stopped_s = shares.STOPPED_AT * sum(
        share.seconds(budget_s) for share in (shares.CALIBRATION, shares.ANALYSIS)
    )
    rest = shares.BASELINE.seconds(budget_s) + shares.ENDING.seconds(budget_s)
    assert stopped_s + rest <= 0.5 * budget_s
