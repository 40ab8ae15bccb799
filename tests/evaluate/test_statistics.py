"""Tests of latency summaries against simulations and known values."""

from __future__ import annotations

import numpy as np
import pytest

from tvmopt.evaluate.statistics import median_interval, summarise


@pytest.mark.parametrize("samples", [10, 11, 17, 30, 57, 100, 200])
def test_interval_covers_the_median(samples):
    rng = np.random.default_rng(samples)
    drawn = np.sort(rng.lognormal(size=(8_000, samples)), axis=1)  # the median is 1
    low, high = median_interval(samples)
    covered = np.mean((drawn[:, low] <= 1) & (drawn[:, high] >= 1))
    assert covered >= 0.94


@pytest.mark.parametrize("samples", range(10, 201, 19))
def test_interval_is_no_wider_than_it_must_be(samples):
    from scipy.stats import binom

    low, high = median_interval(samples)
    assert high == samples - 1 - low
    narrower = binom.cdf(samples - 2 - low, samples, 0.5) - binom.cdf(low + 1, samples, 0.5)
    assert narrower < 0.95


@pytest.mark.parametrize("samples", range(1, 6))
def test_too_few_samples_give_the_extremes(samples):
    assert median_interval(samples) == (0, samples - 1)


def test_more_confidence_is_wider():
    assert median_interval(100, 0.99)[0] < median_interval(100, 0.95)[0]


def test_summary_of_known_samples():
    summary = summarise([s / 1000 for s in (5, 1, 4, 2, 3)])
    assert (summary.mean, summary.p50, summary.samples) == (pytest.approx(3), pytest.approx(3), 5)
    assert summary.std == pytest.approx(np.sqrt(2.5))
    assert summary.p90 == pytest.approx(4.6)
    assert summary.p99 == pytest.approx(4.96)
    assert (summary.ci_low, summary.ci_high) == (pytest.approx(1), pytest.approx(5))


def test_order_of_samples_does_not_matter():
    seconds = np.random.default_rng(0).lognormal(size=99)
    assert summarise(seconds) == summarise(seconds[::-1])


def test_percentiles_are_ordered_and_inside_the_samples():
    summary = summarise(np.random.default_rng(1).lognormal(size=200))
    ordered = [summary.ci_low, summary.p50, summary.ci_high]
    assert ordered == sorted(ordered)
    assert summary.p50 <= summary.p90 <= summary.p95 <= summary.p99


def test_one_sample():
    summary = summarise([0.002])
    assert (summary.std, summary.p50, summary.ci_low, summary.ci_high) == (0, 2, 2, 2)


def test_metric_names():
    assert set(summarise([0.001, 0.002]).metrics()) == {
        f"latency_ms_{name}"
        for name in ("mean", "std", "p50", "p90", "p95", "p99", "ci_low", "ci_high")
    }
