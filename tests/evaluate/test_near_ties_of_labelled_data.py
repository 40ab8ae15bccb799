"""The excuse for near ties hides no real loss: models that lose by their labels are refused.

Models that lose 0.0125 to 0.02 are all refused at a limit of 0.01; of those that lose 0.01 to
0.0125, some are not.

Digits of low contrast in 8-bit images: rounding of the pixels changes classes of the float model.
"""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from tvmopt.evaluate.agreement import Agreement
from tvmopt.evaluate.input_rounding import InputRounding

_LIMIT = 0.01


def _images(rng, digits, levels):
    """Return digits as 8-bit images of at most ``levels`` steps of contrast."""
    contrast = levels * rng.uniform(0.5, 1, (len(digits), 1))
    base = rng.uniform(0, 255 - levels, (len(digits), 1))
    return (np.rint(base + contrast * digits / 16) / 255).astype(np.float32)


def _scores(layers, images, levels):
    x = 255 * (images - images.mean(axis=1, keepdims=True)) / levels
    for at, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        x = x if at + 1 == len(layers) else np.maximum(x, 0)
    return x.astype(np.float32)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("levels", "least_own"), [(3, 0.02), (5, 0.01), (8, 0.004)])
def test_models_that_lose_accuracy_by_labels_are_refused(levels, least_own) -> None:
    rng = np.random.default_rng(0)
    digits, labels = load_digits(return_X_y=True)
    fitted_on = np.arange(len(digits)) % 5 < 2
    images = _images(rng, digits[fitted_on], levels)
    centred = 255 * (images - images.mean(axis=1, keepdims=True)) / levels
    fitted = MLPClassifier((64,), max_iter=300, random_state=0).fit(centred, labels[fitted_on])
    layers = list(zip(fitted.coefs_, fitted.intercepts_, strict=True))
    new = np.concatenate([_images(rng, digits[~fitted_on], levels) for _ in range(8)])
    truth = np.tile(labels[~fitted_on], 8)
    want = _scores(layers, new, levels)
    rounding = InputRounding({"x": new})
    again = rounding.first_outputs(lambda inputs: [_scores(layers, inputs["x"], levels)],
                                   {"x": new})  # fmt: skip
    reference = (want.argmax(axis=1) == truth).mean()
    seen = []
    for noise in np.linspace(0.1, 1.0, 150):
        worse = [(w + noise * w.std() * rng.standard_normal(w.shape), b) for w, b in layers]
        got = _scores(worse, new, levels)
        lost = reference - (got.argmax(axis=1) == truth).mean()
        if _LIMIT < lost < 2 * _LIMIT:
            found = Agreement()
            found.add(got, want, again)
            assert found.own > least_own
            seen.append((lost, 1 - found.with_margin))
    assert len(seen) >= 10
    real, told = np.array(seen).T
    # What is excused is less than what the rule counts too much: flips of decided rows cost less
    # than their number, since the float model is not always right.
    assert told.mean() > real.mean()
    assert (told[real > 1.25 * _LIMIT] > _LIMIT).all()
    assert (told > _LIMIT).mean() > 0.7
