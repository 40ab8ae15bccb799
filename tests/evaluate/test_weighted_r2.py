"""R² of a detector's values, weighted with its scores."""

from __future__ import annotations

import numpy as np
import pytest

from tvmopt.evaluate.accuracy import AccuracyMeter
from tvmopt.evaluate.weighted_r2 import WeightedR2
from tvmopt.frontend.class_scores import ClassScores

RNG = np.random.default_rng(0)
SCORES = np.where(RNG.random((6, 1, 8, 8)) < 0.05, 0.9, 1e-4).astype("float32")
VALUES = RNG.normal(size=(6, 2, 8, 8)).astype("float32") + 3
NOISE = RNG.normal(size=VALUES.shape).astype("float32")


def r2(actual: np.ndarray, scores: np.ndarray = SCORES) -> WeightedR2:
    found = WeightedR2()
    for part in (slice(0, 4), slice(4, 6)):  # two batches
        found.add(actual[part], VALUES[part], scores[part])
    return found


def test_it_is_the_weighted_share_of_variance() -> None:
    actual = VALUES + 0.1 * NOISE
    weights = np.broadcast_to(SCORES, VALUES.shape).astype("float64")
    mean = np.average(VALUES, axis=(0, 2, 3), weights=weights, keepdims=True)
    error = (weights * (actual.astype("float64") - VALUES) ** 2).sum()
    expected = 1 - error / (weights * (VALUES - mean) ** 2).sum()
    found = r2(actual)
    assert found.value == pytest.approx(expected, rel=1e-6)
    assert found.losses().mean() == pytest.approx(1 - expected, rel=1e-6)
    assert len(found.losses()) == 6


def test_noise_where_nothing_is_detected_hardly_counts() -> None:
    background = VALUES + NOISE * (SCORES < 0.5)
    detected = VALUES + NOISE * (SCORES > 0.5)
    assert r2(background).value > 0.98
    assert r2(detected).value < 0.3


def test_equal_values_and_values_that_are_not_finite() -> None:
    assert r2(VALUES).value == 1.0
    broken = VALUES.copy()
    broken[0, 0, 0, 0] = np.nan
    assert r2(broken).value == 0.0


def test_the_axis_of_positions_may_come_before_that_of_classes() -> None:
    transposed = [np.ascontiguousarray(x.reshape(6, -1, 64).transpose(0, 2, 1)) for x in
              (VALUES + 0.1 * NOISE, VALUES, SCORES)]  # fmt: skip
    found = WeightedR2()
    found.add(*transposed)
    assert found.value == pytest.approx(r2(VALUES + 0.1 * NOISE).value, rel=1e-6)


def test_fidelity_of_a_detector_says_what_it_weights() -> None:
    scores = ClassScores(True, "Sigmoid computes output 'heat'", maps=(-1, 0))
    meter = AccuracyMeter("fidelity", has_labels=False, class_scores=scores)
    meter.add([SCORES, VALUES + NOISE * (SCORES < 0.5)], [SCORES, VALUES], None, 6)
    result = meter.result(with_interval=True)
    assert result.drop < 0.02
    assert "weighted with the float model's scores" in result.fidelity
    assert result.interval is not None
