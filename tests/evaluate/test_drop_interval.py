"""Intervals of accuracy drops hold what they say, and tell what samples cannot show."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import AccuracyMeter
from tvmopt.evaluate.drop_interval import confidence_words, of_losses
from tvmopt.frontend.class_scores import ClassScores
from tvmopt.metrics.metric import find_metric


def test_interval_holds_the_true_drop_19_times_in_20() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        lost, gained = rng.random(400) < 0.06, rng.random(400) < 0.02
        losses = lost.astype(float) - gained
        low, high = of_losses(losses)
        held += low <= 0.04 <= high
    assert 0.91 <= held / 300 <= 0.99


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 20), st.integers(0, 20))
def test_interval_holds_the_mean(count, lost, gained) -> None:
    losses = np.zeros(count)
    losses[:lost] = 1
    losses[::-1][:gained] = -1
    low, high = of_losses(losses)
    assert low <= losses.mean() <= high


def test_no_loss_among_few_samples_shows_little() -> None:
    low, high = of_losses(np.zeros(270))
    assert high == pytest.approx(1 - 0.025 ** (1 / 270))
    assert low == -high
    assert 0.001 < high < 0.02
    assert confidence_words((low, high), 0.001).endswith(
        "undecided, since these samples are too few to tell"
    )


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((-0.01, 0.005), "95% interval -0.0100 to +0.0050: within the limit"),
        ((0.02, 0.03), "95% interval +0.0200 to +0.0300: over the limit"),
        (None, ""),
    ],
)
def test_words(interval, words) -> None:
    assert confidence_words(interval, 0.01) == words


def _scores(labels, right):
    """Return scores that are right for some of the labels."""
    return np.eye(3, dtype=np.float32)[np.where(right, labels, (labels + 1) % 3)]


def test_meter_pairs_the_samples() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 200)
    reference_right = rng.random(200) < 0.7
    right = reference_right.copy()
    right[:20] = False
    float_scores, scores = _scores(labels, reference_right), _scores(labels, right)
    found = {}
    for metric in ("top1", "accuracy"):
        own = find_metric(metric, "", ("y",))
        meter = AccuracyMeter(own or metric, has_labels=True)
        for at in range(0, 200, 50):
            rows = slice(at, at + 50)
            meter.add([scores[rows]], [float_scores[rows]], labels[rows], 50)
        assert meter.result().interval is None
        found[metric] = meter.result(with_interval=True)
    one, other = found["top1"], found["accuracy"]
    assert one.drop == pytest.approx(other.drop)
    assert one.low < one.drop < one.high
    # Far narrower than of samples that are not paired: about 2 * 1.96 * sqrt(2 * 0.7 * 0.3 / 200).
    assert one.high - one.low < 0.11
    assert other.interval == pytest.approx(one.interval, abs=0.02)


def test_agreement_resamples_whole_samples() -> None:
    """Ten steps of a sample that fail together are one failure."""
    expected = np.eye(3, dtype=np.float32)[np.zeros((50, 10), int)]
    actual = expected.copy()
    actual[:5] = np.roll(actual[:5], 1, axis=-1)
    meter = AccuracyMeter("fidelity", has_labels=False)
    meter.add([actual], [expected], None, 50)
    found = meter.result(with_interval=True)
    assert found.drop == pytest.approx(0.1)
    assert found.high - found.low > 0.12


def test_r2_of_the_worst_output_has_an_interval() -> None:
    """The drop is a mean over samples, of which each has its own error."""
    rng = np.random.default_rng(0)
    want = [rng.standard_normal((200, 5)).astype(np.float32) for _ in range(2)]
    sizes = rng.lognormal(0, 1, (200, 1)).astype(np.float32)
    errors = [0.001, 0.1 * sizes]
    got = [w + e * rng.standard_normal((200, 5)) for w, e in zip(want, errors, strict=True)]
    got = [one.astype(np.float32) for one in got]
    meter = AccuracyMeter("fidelity", has_labels=False, class_scores=ClassScores(False, "none"))
    for at in range(0, 200, 50):
        rows = slice(at, at + 50)
        meter.add([g[rows] for g in got], [w[rows] for w in want], None, 50)
    assert meter.has_r2
    found = meter.result(with_interval=True)
    variance = want[1].var(axis=0, ddof=1).mean()
    losses = ((got[1] - want[1]) ** 2).mean(axis=1) / variance
    assert found.drop == pytest.approx(losses.mean(), rel=1e-4)
    spread = 1.96 * losses.std() / np.sqrt(200)
    assert found.interval == pytest.approx((found.drop - spread, found.drop + spread), rel=0.15)


def test_r2_of_equal_outputs_and_of_one_sample() -> None:
    for samples, interval in ((4, (0.0, 0.0)), (1, None)):
        meter = AccuracyMeter("fidelity", has_labels=False, class_scores=ClassScores(False, ""))
        output = np.ones((samples, 3), np.float32)
        meter.add([output], [output], None, samples)
        found = meter.result(with_interval=True)
        assert (found.interval, found.agreement, found.drop) == (interval, None, 0.0)


def test_metric_that_needs_all_classes_is_resampled_where_it_can_be() -> None:
    labels = np.array([0] * 30 + [1])
    scores = np.linspace(0, 1, 31, dtype=np.float32)
    meter = AccuracyMeter(find_metric("roc_auc", "", ("y",)), has_labels=True)
    meter.add([scores], [scores], labels, 31)
    assert meter.result(with_interval=True).interval == pytest.approx((0.0, 0.0))


def test_outputs_that_cannot_be_joined_are_one_line(tmp_path) -> None:
    (tmp_path / "own.py").write_text("def score(outputs, labels):\n    return 1.0\n")
    metric = find_metric(f"{tmp_path / 'own.py'}:score", "larger", ("y",))
    meter = AccuracyMeter(metric, has_labels=True)
    for width in (3, 4):
        output = np.ones((2, width), np.float32)
        meter.add([output], [output], np.array([0, 1]), 2)
    with pytest.raises(ConfigError, match="must take the outputs and labels of the data"):
        meter.result(with_interval=True)
