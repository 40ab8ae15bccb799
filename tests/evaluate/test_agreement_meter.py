"""Agreement of scores of classes: counted rows, or the expected share."""

from __future__ import annotations

import numpy as np
import pytest

from tvmopt.evaluate.agreement_meter import AgreementMeter


def _scores(rng, rows, noise):
    want = rng.standard_normal((rows, 30)).astype(np.float32)
    return want + (noise * rng.standard_normal(want.shape)).astype(np.float32), want


def _result(scores, is_expected):
    meter = AgreementMeter(is_expected)
    meter.add(*scores)
    return *meter.result("the output is a softmax"), meter.interval()


def test_expected_agreement_varies_less_than_the_count_and_has_its_mean() -> None:
    rng = np.random.default_rng(0)
    runs = [_scores(rng, 100, 0.1) for _ in range(40)]
    counted, expected = (
        np.array([_result(scores, kind)[0] for scores in runs]) for kind in (False, True)
    )
    assert expected.mean() == pytest.approx(counted.mean(), abs=0.01)
    assert expected.std() < 0.7 * counted.std()


def test_words_hold_the_count() -> None:
    scores = _scores(np.random.default_rng(1), 50, 0.3)
    value, words, (low, high) = _result(scores, True)
    counted, of_count, _ = _result(scores, False)
    assert words.startswith("top-1 agreement (the output is a softmax), expected from all scores")
    assert f"{counted:.4f} with near ties" in words and "near ties of the float model" in of_count
    assert 0 <= low <= 1 - value <= high


def test_equal_models_agree_but_few_samples_leave_a_loss_open() -> None:
    _, want = _scores(np.random.default_rng(2), 10, 0.0)
    value, _, interval = _result((want, want), True)
    assert value == 1 and interval == (0, pytest.approx(0.0196))


def test_changes_of_rounded_inputs_are_said() -> None:
    got, want = _scores(np.random.default_rng(3), 50, 0.3)
    meter = AgreementMeter(True)
    meter.add(got, want, [got])
    value, words = meter.result("asked")
    assert "of the rows when inputs are rounded anew" in words
    plain = AgreementMeter(True)
    plain.add(got, want)
    assert value > plain.result("asked")[0]
