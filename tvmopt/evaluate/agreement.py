"""Top-1 agreement with the float model, strict or with a margin for its near ties.

A compiled model rounds, so it may choose another class where the float model hardly prefers one.
Such a row says nothing about accuracy: the float model itself would be as often right with either
class. So classes agree where the float model's scores of both differ by less than a twentieth of
its median gap between the first and the second class of a row.

- The gap is of the float model, so the margin needs neither a temperature nor to know logits from
  probabilities: scaling or shifting all scores changes nothing.
- The median row is far outside of the margin, so a model that errs everywhere cannot agree by it.
- It hides little. Gaps are about evenly dense up to their median ``G``, so some 4% of rows are near
  ties; a noise that confuses half of them costs ``0.09 * 0.05**2 * G`` of accuracy for logits whose
  softmax is calibrated: below 0.001 where the typical row is decided by 3 nats.

Of other rows nearer than a quarter of the median gap, half as many may change as the float model
itself changes when its inputs are rounded anew (:mod:`.input_rounding`). The data does not
determine these classes. Rows beyond the quarter count in full, and so does every change above that
number. The loss is ``far + max(0, near - own / 2)``, shares of all rows. Half, because all of them
would hide real losses of models that lose 0.01 to 0.02 by labels, see
benchmarks/results/2026-11-28-near-ties.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_NEAR_TIE = 0.05
"""Share of the median gap below which two classes are nearly tied."""
_UNSURE = 0.25
"""Share of the median gap below which rounding of the inputs may excuse another class."""
_EXCUSED = 0.5
"""Part of the float model's own changes that are excused."""
_ROUNDING = 1e-5
"""Scores nearer than this, relative to the larger one, are equal in float32."""


def holds_rows_of_scores(output: np.ndarray) -> bool:
    """Return whether an array may be a table of scores: (batch, classes), (batch, steps, classes).

    The last axis of an image is spatial, not a class.
    """
    return output.dtype.kind == "f" and output.ndim in (2, 3) and output.shape[-1] > 1


def excess(shares: np.ndarray) -> np.ndarray:
    """Return ``far + max(0, near - own / 2)`` of arrays (..., 3) with these columns."""
    near = shares[..., 1] - _EXCUSED * shares[..., 2]
    loss: np.ndarray = shares[..., 0] + np.maximum(0.0, near)
    return loss


def means_of_runs(rows: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the mean of each run of consecutive rows, (runs, columns).

    Args:
        rows: (rows, columns).
        sizes: Rows of each run, at least one.
    """
    starts = np.cumsum(sizes) - sizes
    found: np.ndarray = np.add.reduceat(rows, starts, axis=0) / sizes[:, None]
    return found


class Agreement:
    """Accumulate the rows of batches."""

    def __init__(self) -> None:
        self._lost: list[np.ndarray] = []
        self._own: list[np.ndarray] = []  # (draws, rows)
        self._gaps: list[np.ndarray] = []
        self._rows_of_a_sample: list[np.ndarray] = []
        self._classes: set[int] = set()

    def add(
        self, actual: np.ndarray, expected: np.ndarray, again: Sequence[np.ndarray] = ()
    ) -> None:
        """Add a batch of scores, float arrays (samples, ..., classes) of one shape.

        Args:
            actual: Scores of the model.
            expected: Scores of the float model.
            again: Its scores for the inputs rounded anew, one array a draw; all batches have as
                many.
        """
        classes = expected.shape[-1]
        want = expected.reshape(-1, classes)
        if not len(want):
            return
        two = np.partition(want, -2, axis=1)[:, -2:].astype(np.float64)
        with np.errstate(invalid="ignore"):
            gaps = two[:, 1] - two[:, 0]
        self._lost.append(_lost(actual.reshape(-1, classes), want))
        own = [_lost(one.reshape(-1, classes), want) for one in again]
        self._own.append(np.array(own).reshape(len(own), len(want)))
        self._gaps.append(gaps[np.isfinite(gaps)])
        self._rows_of_a_sample.append(np.full(len(expected), len(want) // len(expected)))
        if len(self._classes) < 2:
            self._classes.update(np.unique(want.argmax(axis=1))[:2].tolist())

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(map(len, self._lost))

    @property
    def strict(self) -> float:
        """Share of rows with the float model's class; needs a row."""
        return float(np.mean(np.concatenate(self._lost) == 0))

    @property
    def with_margin(self) -> float:
        """Share of rows that agree, near ties of the float model included: one less the loss."""
        return float(1.0 - excess(self._by_row().mean(axis=0)))

    @property
    def own(self) -> float:
        """Share of rows whose class rounding of the inputs changes in the float model.

        Rows within the margin, and beyond a quarter of the median gap, do not count.
        """
        return float(self._by_row()[:, 2].mean())

    @property
    def draws(self) -> int:
        """Number of draws of rounded inputs."""
        return len(self._own[0]) if self._own else 0

    def losses(self) -> np.ndarray:
        """Return each sample's shares of rows: far, near, and own of the float model; (samples, 3).

        The steps of a sample are not independent.
        """
        return means_of_runs(self._by_row(), np.concatenate(self._rows_of_a_sample))

    def is_of_one_class(self, least_rows: int) -> bool:
        """Return whether the float model has one class for all rows, of at least so many."""
        return self.rows >= least_rows and len(self._classes) == 1

    def _by_row(self) -> np.ndarray:
        """Return for each row whether it is lost far or near, and the draws that lose it near."""
        gaps = np.concatenate(self._gaps)
        median = float(np.median(gaps)) if gaps.size else 0.0
        lost, own = np.concatenate(self._lost), np.concatenate(self._own, axis=1)
        ranges = [
            (side > 0) & (side >= _NEAR_TIE * median) & (side < _UNSURE * median)
            for side in (lost, own)
        ]
        far = (lost > 0) & (lost >= _NEAR_TIE * median) & ~ranges[0]
        of_draws = ranges[1].mean(axis=0) if len(own) else np.zeros(len(lost))
        return np.stack([far, ranges[0], of_draws], axis=1).astype(np.float64)


def _lost(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Return by how much each row's chosen class is below the float model's; arrays of 2 axes."""
    rows, chosen, first = np.arange(len(want)), got.argmax(axis=1), want.argmax(axis=1)
    top = want[rows, first].astype(np.float64)
    with np.errstate(invalid="ignore"):
        lost: np.ndarray = top - want[rows, chosen]
        lost[np.isfinite(lost) & (lost <= _ROUNDING * np.abs(top))] = 0.0
    lost[chosen == first] = 0.0
    lost[np.isnan(lost)] = np.inf
    # NumPy takes the first NaN for the largest score.
    lost[np.isnan(got).any(axis=1) & ~np.isnan(want).any(axis=1)] = np.inf
    return lost
