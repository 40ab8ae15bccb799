"""The expected share of rows with another class: near what many samples show, from few."""

from __future__ import annotations

import numpy as np
import pytest

from tvmopt.evaluate import expected_disagreement as module
from tvmopt.evaluate.agreement import Agreement, excess
from tvmopt.evaluate.drop_interval import of_expected
from tvmopt.evaluate.expected_disagreement import ExpectedDisagreement, expected_disagreement


def _scores(rng, count, noise):
    want = rng.standard_normal((count, 1, 20)) * rng.uniform(1, 3, (count, 1, 1))
    size = want.std(axis=-1, keepdims=True)
    got = want + noise * size * rng.standard_normal(want.shape)
    return list(got.astype(np.float32)), list(want.astype(np.float32))


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.05])
@pytest.mark.parametrize("softmax", [False, True])
def test_few_samples_show_the_rate_of_many(noise, softmax) -> None:
    rng = np.random.default_rng(0)
    many = Agreement()
    many.add(*map(np.concatenate, _scores(rng, 20000, noise)))
    rate = 1 - many.with_margin
    found = []
    for _ in range(160):
        got, want = _scores(rng, 64, noise)
        if softmax:
            got, want = ([np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in side]
                         for side in (got, want))  # fmt: skip
        losses = expected_disagreement(got, want)
        assert losses.shape == (64, 3) and not losses[:, 2].any()
        found.append(excess(losses.mean(axis=0)))
    assert np.mean(found) == pytest.approx(rate, rel=0.35, abs=5e-4)
    # A count of 64 rows has a standard deviation of sqrt(rate / 64).
    assert np.std(found) < 0.7 * np.sqrt(rate / 64) + 5e-4


def test_errors_may_be_larger_where_a_class_is_active() -> None:
    """As they are in networks: errors by class, from rows of other classes, would be too small."""
    rng = np.random.default_rng(5)

    def scores(count):
        want = rng.standard_normal((count, 200)).astype(np.float32)
        size = 0.01 + 0.1 * np.maximum(0.0, want - 1.5)
        return want + size.astype(np.float32) * rng.standard_normal(want.shape).astype("f"), want

    many = Agreement()
    many.add(*scores(20000))
    found = [excess(expected_disagreement(*([x] for x in scores(128))).mean(axis=0))
             for _ in range(24)]  # fmt: skip
    assert np.mean(found) == pytest.approx(1 - many.with_margin, rel=0.1)


def test_equal_scores_lose_nothing_and_nan_loses_its_row() -> None:
    got, want = _scores(np.random.default_rng(1), 8, 0.1)
    assert not expected_disagreement(want, want).any()
    without = expected_disagreement([*got[:3], *got[4:]], [*want[:3], *want[4:]])
    got[3][0, 0] = np.nan
    found = expected_disagreement(got, want)
    assert found[3].tolist() == [1.0, 0.0, 0.0]
    np.testing.assert_allclose(found[[0, 1, 2, 4, 5, 6, 7]], without)


def test_rows_that_are_not_finite_in_the_float_model_count_by_their_class() -> None:
    """Masked classes have minus infinity; NaN in both models is the same output."""
    got, want = (np.concatenate(side) for side in _scores(np.random.default_rng(10), 12, 0.0))
    for side in (got, want):
        side[0, 3], side[1] = -np.inf, np.nan
        side[2, 4] = -np.inf
    got[2, np.argsort(want[2])[1]] = 99.0
    found = _of([got], [want]).losses()
    assert found[2].tolist() == [1.0, 0.0, 0.0]
    assert not np.delete(found, 2, axis=0).any()


def test_rows_of_a_batch_are_counted_together() -> None:
    rng = np.random.default_rng(2)
    want = [rng.standard_normal((n, 5, 6)).astype(np.float32) for n in (1, 2)]
    got = [one + 0.3 * rng.standard_normal(one.shape).astype(np.float32) for one in want]
    losses = expected_disagreement(got, want)
    assert losses.shape == (2, 3) and (losses >= 0).all() and (losses.sum(axis=1) <= 1).all()
    assert losses.any()


def test_changes_of_the_float_model_are_estimated_like_those_of_the_model() -> None:
    rng = np.random.default_rng(3)
    got, want = _scores(rng, 64, 0.05)
    shares = expected_disagreement(got, want, [got, got])
    np.testing.assert_allclose(shares[:, 2], shares[:, 1])
    half = shares[:, 0].mean() + shares[:, 1].mean() / 2
    assert excess(shares.mean(axis=0)) == pytest.approx(half) and half > 0


def test_many_rows_take_fewer_errors_each(monkeypatch) -> None:
    calls = []

    class Counted(Agreement):
        def add(self, *arguments):
            calls.append(len(arguments[1]))
            super().add(*arguments)

    monkeypatch.setattr(module, "Agreement", Counted)
    rng = np.random.default_rng(4)
    got, want = _scores(rng, 4000, 0.05)
    few = excess(expected_disagreement(got, want).mean(axis=0))
    assert calls == [4000] * 3
    monkeypatch.setattr(module, "_PAIRS", 10**6)
    assert few == pytest.approx(excess(expected_disagreement(got, want).mean(axis=0)), rel=0.1)


def _of(got, want) -> ExpectedDisagreement:
    found = ExpectedDisagreement()
    for pair in zip(got, want, strict=True):
        found.add(*pair)
    return found


def test_interval_of_the_mean_holds_what_other_samples_show() -> None:
    """Both the gaps and the errors differ between samples; 95 % of intervals hold the rate."""
    rng = np.random.default_rng(6)

    def samples(count):
        want = rng.standard_normal((count, 1, 20)).astype(np.float32)
        sizes = 0.02 * rng.exponential(size=(count, 1, 1)) ** 2  # a few samples have large errors
        noise = sizes * rng.standard_normal(want.shape)
        return list(want + noise.astype(np.float32)), list(want)

    true = excess(_of(*samples(4000)).losses().mean(axis=0))
    inside = []
    for _ in range(60):
        low, high = of_expected(_of(*samples(100)).influences())
        inside.append(low <= true <= high)
    assert np.mean(inside) >= 0.85


def test_influences_have_the_mean_of_the_losses() -> None:
    found = _of(*_scores(np.random.default_rng(7), 50, 0.2))
    assert len(found.influences()) == 50
    np.testing.assert_allclose(found.influences().mean(axis=0), found.losses().mean(axis=0))


def test_class_far_down_in_the_float_model_is_seen() -> None:
    """Only 32 classes of a row are kept, of 100."""
    want = np.random.default_rng(8).standard_normal((40, 100)).astype(np.float32)
    got = want.copy()
    got[np.arange(40), want.argmin(axis=1)] = 50.0
    assert excess(_of([got], [want]).losses().mean(axis=0)) > 0.9


def test_rows_of_equal_scores_have_no_errors_to_give() -> None:
    got, want = (np.concatenate(side) for side in _scores(np.random.default_rng(9), 40, 0.0))
    got, want = (
        np.append(got, np.full((1, 20), 7.5, "f"), 0),
        np.append(want, np.ones((1, 20), "f"), 0),
    )
    assert not _of([got], [want]).losses().any()
