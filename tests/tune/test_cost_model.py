"""Tests of the cost model: does it rank."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr

from tvmopt.tune.cost_model import RankingModel, reduce_stores

LENGTH = 30


def synthetic(count: int, seed: int, scale_us: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw candidates whose latency is a nonlinear function of few features, with 10 % noise."""
    rng = np.random.default_rng(seed)
    features = rng.random((count, LENGTH))
    cost = 1.0 + 4.0 * np.abs(features[:, 3] - 0.4) + 3.0 * features[:, 7] * features[:, 11]
    return features, scale_us * cost * rng.normal(1.0, 0.1, count)


def trained(seed: int = 0) -> RankingModel:
    model = RankingModel(seed=seed)
    for group, scale_us in (("small", 5.0), ("large", 5e4)):
        features, latency_us = synthetic(60, seed=len(group), scale_us=scale_us)
        model.add(group, features, latency_us)
    return model


def test_ranks_candidates_it_has_not_seen() -> None:
    features, latency_us = synthetic(200, seed=99, scale_us=700.0)
    correlation = spearmanr(trained().score(features), -latency_us).statistic
    assert correlation > 0.6


def test_the_best_of_each_task_is_one_and_a_failure_is_zero() -> None:
    model = RankingModel()
    model.add("a", np.zeros((3, 2)), np.array([10.0, 20.0, np.inf]))
    model.add("b", np.zeros((2, 2)), np.array([400.0, 100.0]))
    model.add("c", np.zeros((1, 2)), np.array([np.inf]))
    np.testing.assert_allclose(model.targets(), [1.0, 0.5, 0.0, 0.25, 1.0, 0.0])


def test_failures_are_ranked_last() -> None:
    model = RankingModel()
    features, latency_us = synthetic(80, seed=1, scale_us=10.0)
    latency_us[features[:, 0] > 0.5] = np.inf
    model.add("task", features, latency_us)
    unseen, _ = synthetic(100, seed=2, scale_us=10.0)
    scores, fails = model.score(unseen), unseen[:, 0] > 0.5
    assert scores[fails].mean() < 0.5 * scores[~fails].mean()


def test_scores_are_random_until_there_are_enough_samples() -> None:
    model = RankingModel(seed=3)
    assert not model.is_trained
    scores = model.score(np.zeros((50, LENGTH)))
    assert scores.shape == (50,)
    assert len(set(scores)) == 50
    np.testing.assert_array_equal(RankingModel(seed=3).score(np.zeros((50, LENGTH))), scores)


def test_stores_reduce_to_one_length() -> None:
    one, three = reduce_stores(np.ones((1, 4))), reduce_stores(np.ones((3, 4)))
    assert one.shape == three.shape == (13,)
    np.testing.assert_allclose(three, [3.0] * 4 + [1.0] * 8 + [3.0])
