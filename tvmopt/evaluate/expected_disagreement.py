"""Estimate how often a converted model has another top-1 than the float model, from few samples.

A count of rows with another class needs hundreds of samples to tell a rate of 1 %: one row in a
hundred differs. Scores hold more than the class: how far the second class is behind, and how large
the errors are. So each row of float scores takes the errors of other rows, one after the other, and
the share of these pairs whose class changes is counted. The errors are taken by rank: the first
class of a row gets the error of the first class of the other row, and so on. Classes that a row
is active in have larger errors, so that errors by class would find 0.0052 of rows to change where
0.0088 do (efficientnet_lite0, 1024 photographs), and errors by rank find 0.0076.

Errors of a row are in proportion to the spread of its scores. Scores that are probabilities are
compared by their logarithms, in which errors add up. Near ties are defined in :mod:`.agreement`.
The float model's changes, for inputs that are rounded anew, are estimated alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tvmopt.evaluate.agreement import Agreement

_OTHERS = 24  # rows whose errors each row takes
# With many rows each takes fewer: the rows' number then limits the precision.
_PAIRS, _LEAST_OTHERS = 1 << 13, 3
# Noise of a row's gap, as a share of the median gap: a kernel smooths the density of gaps. With it
# the estimate for efficientnet_lite0 on 64 samples has a standard deviation of 0.0028 (0.0045
# without) and a mean of 0.0062 (0.0071), where 800 samples say 0.0067. A noise of 1 takes the mean
# to 0.0044. Measured with errors by class: benchmarks/results/2026-11-28-mixed-accuracy-3.md.
_GAP_NOISE = 0.1
# Most likely classes of a row that may become its first.
_RANKS = 32
_SEED = 20261128
_SMALLEST = 1e-9  # probability that float32 cannot tell from 0


def expected_disagreement(
    actual: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    again: Sequence[Sequence[np.ndarray]] = (),
) -> np.ndarray:
    """Return the expected shares of rows with another class, for each batch.

    Args:
        actual: Scores of the converted model, one array (samples, ..., classes) for each batch.
        expected: Scores of the float model.
        again: For each draw, its scores for the inputs rounded anew, one array for each batch.

    Returns:
        Shape (batches, 3), columns as of :meth:`.agreement.Agreement.losses`.
    """
    rows_of = np.array([math.prod(one.shape[:-1]) for one in expected], np.int64)
    got, want, *drawn = (
        np.concatenate([one.reshape(-1, one.shape[-1]) for one in side]).astype(np.float32)
        for side in (actual, expected, *again)
    )
    if not np.isfinite(got).all() or not np.isfinite(want).all():
        return np.tile([1.0, 0.0, 0.0], (len(rows_of), 1))
    classes = _most_likely(want)
    got, *drawn = (np.take_along_axis(side, classes, axis=1) for side in (got, *drawn))
    if want.min() >= 0 and np.allclose(want.sum(axis=-1), 1, atol=1e-3):
        got, want, *drawn = (np.log(np.maximum(side, _SMALLEST)) for side in (got, want, *drawn))
    spread = np.maximum(want.std(axis=-1, keepdims=True), np.finfo(np.float32).tiny)
    want = np.take_along_axis(want, classes, axis=1)
    errors, *own = ((side - want) / spread for side in (got, *drawn))
    count = len(want)
    lost = np.zeros((count, 3))
    rng = np.random.default_rng(_SEED)
    steps = range(min(_OTHERS, count, max(_LEAST_OTHERS, _PAIRS // count)))
    for step in steps:  # step 0: a row's own error
        other = (np.arange(count) + step * max(1, count // len(steps))) % count
        agreement = Agreement()
        exact = _with_other_gaps(want, rng)
        others = [exact + errors_of[other] * spread for errors_of in (errors, *own)]
        agreement.add(others[0], exact, others[1:])
        lost += agreement.losses()
    starts: np.ndarray = np.cumsum(rows_of, dtype=np.int64) - rows_of
    found: np.ndarray = np.add.reduceat(lost / len(steps), starts, axis=0) / rows_of[:, None]
    return found


def _most_likely(scores: np.ndarray) -> np.ndarray:
    """Return the most likely classes of each row of scores, (rows, ranks), the first one first."""
    ranks = min(_RANKS, scores.shape[1])
    found = np.argpartition(-scores, ranks - 1, axis=1)[:, :ranks]
    order = np.argsort(-np.take_along_axis(scores, found, axis=1), axis=1, kind="stable")
    classes: np.ndarray = np.take_along_axis(found, order, axis=1)
    return classes


def _with_other_gaps(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return scores, (rows, classes), whose first class leads the second by another gap.

    The gap gets normal noise, and is reflected at zero, where the density of gaps ends.
    """
    found = scores.copy()
    rows, first = np.arange(len(scores)), scores.argmax(axis=1)
    two = np.partition(scores, -2, axis=1)[:, -2:]
    gaps = two[:, 1] - two[:, 0]
    noise = _GAP_NOISE * np.median(gaps) * rng.standard_normal(len(gaps))
    found[rows, first] += (np.abs(gaps + noise) - gaps).astype(scores.dtype)
    return found
