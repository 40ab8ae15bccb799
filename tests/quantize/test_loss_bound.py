"""The bound of a mean loss holds as often as it says, and sample sizes follow the spread."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tvmopt.quantize.loss_bound import batches_for_mean, loss_bound


@pytest.mark.sample(3)
@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("count", [8, 32, 128])
def test_the_bound_holds_for_most_new_samples_of_the_best_of_twenty_sets(spread, count):
    rng = np.random.default_rng(0)
    held = []
    for _ in range(400):
        seen = 1e-3 * rng.lognormal(0, spread, (20, count))
        best = min(seen, key=np.mean)
        held.append(1e-3 * rng.lognormal(0, spread, count).mean() <= loss_bound(list(best)))
    assert np.mean(held) >= 0.92


def test_the_bound_is_close_where_losses_are_alike():
    losses = [1e-3 * (1 + 0.01 * (at % 3)) for at in range(30)]
    assert 1e-3 < loss_bound(losses) < 1.02e-3


def test_the_bound_of_exact_outputs_is_what_matters():
    assert loss_bound([0.0] * 8) == 1e-4


def test_two_batches_have_no_bound():
    assert loss_bound([1e-3, 2e-3]) is None


def test_the_mean_of_the_wanted_batches_is_known_to_a_tenth():
    rng = np.random.default_rng(1)
    few = list(rng.lognormal(0, 1, 64))
    wanted = batches_for_mean(few)
    assert 100 < wanted < 300  # 172 for this spread
    means = rng.lognormal(0, 1, (500, wanted)).mean(axis=1)
    assert means.std() / means.mean() == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("losses", [[0.0] * 5, [1e-12] * 5])
def test_exact_outputs_need_no_more_batches(losses):
    assert batches_for_mean(losses) == 5


def test_a_bound_is_at_most_the_largest_loss():
    assert loss_bound([1.9, 2.0, 1e-6]) == 2.0 and math.isfinite(loss_bound([2.0] * 3))
