"""Tests of the deviation between two arrays."""

from __future__ import annotations

import numpy as np
import pytest

from tvmopt.compare import cosine, deviation

NAN, INF = float("nan"), float("inf")
LOWEST = float(np.finfo(np.float64).min)


@pytest.mark.parametrize(
    ("actual", "expected", "apart"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([0.0, 10.5], [0.0, 10.0], 0.05),  # relative to the largest value
        ([0.01], [0.0], 0.01),  # ... but never to less than 1
        ([0.2], [0.1], 0.1),
        ([-100.0], [100.0], 2.0),
        ([NAN, 1.0], [NAN, 1.0], 0.0),
        ([INF, 1.0], [INF, 1.5], 0.5 / 1.5),
        ([-INF], [INF], INF),
        ([NAN], [1.0], INF),
        ([1.0], [NAN], INF),
        ([INF], [1.0], INF),
        ([1.0], [INF], INF),
        ([1.0, 2.0], [1.0], INF),
        ([[1.0]], [1.0], INF),
        ([], [], 0.0),
        (1.5, 1.0, 0.5),
        ([-INF, 1.0], [LOWEST, 1.0], 0.0),  # both mask
        ([LOWEST, 2.0], [-INF, 1.0], 1.0),
        ([LOWEST, 2.0], [LOWEST, 1.0], 1.0),
        ([INF], [-LOWEST], INF),
    ],
)
def test_floats(actual, expected, apart):
    assert deviation(np.array(actual), np.array(expected)) == pytest.approx(apart)


def test_whole_numbers_count_what_differs():
    assert deviation(np.array([1, 2, 3, 400]), np.array([1, 2, 3, 4])) == 0.25
    assert deviation(np.array([True, False]), np.array([True, True])) == 0.5


def test_large_float16_values_do_not_overflow():
    big = np.array([6e4, -6e4], np.float16)
    assert deviation(big, -big) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("actual", "expected", "apart"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([0.0, 10.0], [0.0, 5.0], 1.0),
        ([2.0] * 99 + [22.0], [2.0] * 100, 1.0),
        ([1e-3, 0.0], [0.0, 0.0], 0.1 / 2**0.5),
        ([NAN, 1.0], [NAN, 1.0], 0.0),
        ([NAN, 1.0], [1.0, 1.0], INF),
        ([1.0], [1.0, 2.0], INF),
    ],
)
def test_rms(actual, expected, apart):
    assert deviation(np.array(actual), np.array(expected), "rms") == pytest.approx(apart)


@pytest.mark.parametrize(
    ("actual", "expected", "similar"),
    [
        ([1.0, 2.0], [2.0, 4.0], 1.0),
        ([1.0, 0.0], [0.0, 1.0], 0.0),
        ([1.0, 1.0], [-1.0, -1.0], -1.0),
        ([0.0], [0.0], 1.0),
        ([1.0], [0.0], 0.0),
        ([INF, 3.0], [INF, 1.0], 1.0),
        ([1.0, 3.0], [INF, 3.0], 0.0),
        ([NAN, 3.0], [1.0, 3.0], 0.0),
        ([1.0], [1.0, 1.0], 0.0),
        ([], [], 1.0),
        ([1e-8], [-2e-8], 1.0),
        ([1e-8], [1.0], 1.0),
        ([1e-8], [-1.0], -1.0),
        ([-INF, 1.0], [LOWEST, 2.0], 1.0),
    ],
)
def test_cosine(actual, expected, similar):
    assert cosine(np.array(actual), np.array(expected)) == pytest.approx(similar)
