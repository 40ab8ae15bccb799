"""Estimate how often a converted model has another top-1 than the float model, from few samples.

A count of rows with another class needs hundreds of samples to tell a rate of 1 %: one row in a
hundred differs. Scores hold more than the class: how far the second class is behind, and how large
the errors are. So each row of float scores takes the errors of other rows, one after the other, and
the share of these pairs whose class changes is counted.

Errors of a row are in proportion to the spread of its scores. Scores that are probabilities are
compared by their logarithms, in which errors add up. The margin for near ties is that of
:mod:`.agreement`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tvmopt.evaluate.agreement import Agreement

_OTHERS = 24  # rows whose errors each row takes
_SMALLEST = 1e-9  # probability that float32 cannot tell from 0


def expected_disagreement(
    actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]
) -> np.ndarray:
    """Return the expected share of rows with another class, for each batch.

    Args:
        actual: Scores of the converted model, one array (samples, ..., classes) for each batch.
        expected: Scores of the float model.
    """
    rows_of = np.array([math.prod(one.shape[:-1]) for one in expected], np.int64)
    got, want = (
        np.concatenate([one.reshape(-1, one.shape[-1]) for one in side]).astype(np.float32)
        for side in (actual, expected)
    )
    if not np.isfinite(got).all() or not np.isfinite(want).all():
        return np.ones(len(rows_of))
    if want.min() >= 0 and np.allclose(want.sum(axis=-1), 1, atol=1e-3):
        got, want = (np.log(np.maximum(side, _SMALLEST)) for side in (got, want))
    errors = got - want
    spread = np.maximum(want.std(axis=-1, keepdims=True), np.finfo(np.float32).tiny)
    count = len(want)
    lost = np.zeros(count)
    steps = range(min(_OTHERS, count))
    for step in steps:  # step 0: a row's own error
        other = (np.arange(count) + step * max(1, count // len(steps))) % count
        agreement = Agreement()
        agreement.add(want + errors[other] * (spread / spread[other]), want)
        lost += agreement.losses()
    starts: np.ndarray = np.cumsum(rows_of, dtype=np.int64) - rows_of
    found: np.ndarray = np.add.reduceat(lost / len(steps), starts) / rows_of
    return found
