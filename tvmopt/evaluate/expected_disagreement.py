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

from collections.abc import Sequence

import numpy as np

from tvmopt.evaluate.agreement import Agreement, means_of_runs

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


class ExpectedDisagreement:
    """Accumulate scores of batches; :meth:`losses` returns what each sample is expected to lose.

    Of each row the most likely classes are kept. A row with NaN or infinity is lost or not by its
    own class, and has no errors to give.
    """

    def __init__(self) -> None:
        self._rows_of_a_sample: list[np.ndarray] = []
        self._scores: list[list[np.ndarray]] = []  # float model's, model's, each draw's; by batch
        self._spreads: list[np.ndarray] = []  # (rows, 2): of scores, of their logarithms
        self._are_finite: list[np.ndarray] = []  # (rows,), by batch
        self._are_probabilities = True
        self._shares: tuple[np.ndarray, np.ndarray] | None = None

    def add(
        self, actual: np.ndarray, expected: np.ndarray, again: Sequence[np.ndarray] = ()
    ) -> None:
        """Add a batch, see :meth:`.agreement.Agreement.add`."""
        want, got, *drawn = (
            side.reshape(-1, expected.shape[-1]).astype(np.float32)
            for side in (expected, actual, *again)
        )
        if not len(want):
            return
        self._shares = None
        self._rows_of_a_sample.append(np.full(len(expected), len(want) // len(expected)))
        sides = (want, got, *drawn)
        is_finite = np.all([np.isfinite(side).all(axis=-1) for side in sides], axis=0)
        known = want[is_finite]
        if known.size:
            is_one = np.allclose(known.sum(axis=-1), 1, atol=1e-3)
            self._are_probabilities &= bool(known.min() >= 0 and is_one)
        classes = _most_likely(want, got)
        self._are_finite.append(is_finite)
        self._scores.append([np.take_along_axis(side, classes, axis=1) for side in sides])
        with np.errstate(invalid="ignore"):
            spreads = want.std(axis=-1), _logarithm(want).std(axis=-1)
        self._spreads.append(np.stack(spreads, axis=-1))

    def losses(self) -> np.ndarray:
        """Return the expected shares of rows with another class, for each sample.

        Returns:
            Shape (samples, 3), columns as of :meth:`.agreement.Agreement.losses`.
        """
        return self._by_sample(self._computed()[0])

    def influences(self) -> np.ndarray:
        """Return what each sample contributes to the mean of :meth:`losses`; shape (samples, 3).

        A sample gives its gap to the losses of its rows, and its errors to the losses of other
        rows, so that a mean over other samples differs for both reasons. This is the first-order
        part of the estimate (Hoeffding, "A Class of Statistics with Asymptotically Normal
        Distribution", 1948), and a resample of it shows the interval.
        """
        rows, donors = self._computed()
        return self._by_sample(rows + donors - rows.mean(axis=0))

    def _by_sample(self, rows: np.ndarray) -> np.ndarray:
        return means_of_runs(rows, np.concatenate(self._rows_of_a_sample))

    def _computed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what each row loses by errors of others, and what its errors make others lose."""
        if self._shares is None:
            self._shares = self._compute()
        return self._shares

    def _compute(self) -> tuple[np.ndarray, np.ndarray]:
        sides = [np.concatenate(side) for side in zip(*self._scores, strict=True)]
        finite, spread = np.concatenate(self._are_finite), np.concatenate(self._spreads)
        lost = np.zeros((len(finite), 3))
        if not finite.all():
            own = Agreement()
            want, got, *drawn = (side[~finite] for side in sides)
            own.add(got, want, drawn)
            lost[~finite] = own.losses()
        made = lost.copy()
        if finite.any():
            if self._are_probabilities:
                sides = [_logarithm(side) for side in sides]
            spread = spread[:, int(self._are_probabilities), None]
            found = _by_errors_of_others([side[finite] for side in sides], spread[finite])
            lost[finite], made[finite] = found
        return lost, made


def _by_errors_of_others(
    sides: Sequence[np.ndarray], spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return what each row loses by errors of others, and what its errors make others lose.

    Args:
        sides: Scores of the float model, of the model, and of each draw; (rows, ranks).
        spread: Of each row of the float model's scores, (rows, 1).
    """
    want, *others = sides
    count = len(want)
    # A row of equal scores has no class, and its errors have no scale.
    scale = np.where(spread > 0, spread, np.inf)
    errors = [(side - want) / scale for side in others]
    lost, made = np.zeros((count, 3)), np.zeros((count, 3))
    rng = np.random.default_rng(_SEED)
    steps = range(min(_OTHERS, count, max(_LEAST_OTHERS, _PAIRS // count)))
    for step in steps:  # step 0: a row's own error
        donor = (np.arange(count) + step * max(1, count // len(steps))) % count
        exact = _with_other_gaps(want, rng)
        agreement = Agreement()
        shifted = [exact + errors_of[donor] * spread for errors_of in errors]
        agreement.add(shifted[0], exact, shifted[1:])
        found = agreement.losses()
        lost += found
        made[donor] += found
    return lost / len(steps), made / len(steps)


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
    found = ExpectedDisagreement()
    for batch in zip(actual, expected, *again, strict=True):
        found.add(batch[0], batch[1], batch[2:])
    return means_of_runs(found.losses(), np.array([len(one) for one in expected]))


def _logarithm(scores: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.log(np.maximum(scores, np.float32(_SMALLEST)))
    return found


def _most_likely(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the most likely classes of each row, (rows, ranks), the first one first.

    The first class of ``others`` takes the last rank where it is not among them.
    """
    ranks = min(_RANKS, scores.shape[1])
    found = np.argpartition(-scores, ranks - 1, axis=1)[:, :ranks]
    order = np.argsort(-np.take_along_axis(scores, found, axis=1), axis=1, kind="stable")
    classes: np.ndarray = np.take_along_axis(found, order, axis=1)
    first = others.argmax(axis=1)
    is_new = ~(classes == first[:, None]).any(axis=1)
    classes[is_new, -1] = first[is_new]
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
