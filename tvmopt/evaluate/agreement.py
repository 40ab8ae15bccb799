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
"""

from __future__ import annotations

import numpy as np

_NEAR_TIE = 0.05
"""Share of the median gap below which two classes are nearly tied."""
_ROUNDING = 1e-5
"""Scores nearer than this, relative to the larger one, are equal in float32."""


def holds_rows_of_scores(output: np.ndarray) -> bool:
    """Return whether an array may be a table of scores: (batch, classes), (batch, steps, classes).

    The last axis of an image is spatial, not a class.
    """
    return output.dtype.kind == "f" and output.ndim in (2, 3) and output.shape[-1] > 1


class Agreement:
    """Accumulate the rows of batches."""

    def __init__(self) -> None:
        self._lost: list[np.ndarray] = []
        self._gaps: list[np.ndarray] = []
        self._rows_of_a_sample: list[np.ndarray] = []
        self._classes: set[int] = set()

    def add(self, actual: np.ndarray, expected: np.ndarray) -> None:
        """Add a batch of scores, float arrays (samples, ..., classes) of one shape."""
        classes = expected.shape[-1]
        got, want = actual.reshape(-1, classes), expected.reshape(-1, classes)
        if not len(want):
            return
        rows, chosen, first = np.arange(len(want)), got.argmax(axis=1), want.argmax(axis=1)
        two = np.partition(want, -2, axis=1)[:, -2:].astype(np.float64)
        top = want[rows, first].astype(np.float64)
        with np.errstate(invalid="ignore"):
            lost = top - want[rows, chosen]
            lost[np.isfinite(lost) & (lost <= _ROUNDING * np.abs(top))] = 0.0
            gaps = two[:, 1] - two[:, 0]
        lost[chosen == first] = 0.0
        lost[np.isnan(lost)] = np.inf
        # NumPy takes the first NaN for the largest score.
        lost[np.isnan(got).any(axis=1) & ~np.isnan(want).any(axis=1)] = np.inf
        self._lost.append(lost)
        self._gaps.append(gaps[np.isfinite(gaps)])
        self._rows_of_a_sample.append(np.full(len(expected), len(want) // len(expected)))
        if len(self._classes) < 2:
            self._classes.update(np.unique(first)[:2].tolist())

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
        """Share of rows with its class, or one nearly tied with it."""
        return float(np.mean(self._agrees()))

    def losses(self) -> np.ndarray:
        """Return each sample's share of rows that do not agree, shape (samples,).

        The steps of a sample are not independent.
        """
        sizes = np.concatenate(self._rows_of_a_sample)
        starts = np.cumsum(sizes) - sizes
        return np.add.reduceat(1.0 - self._agrees(), starts) / sizes

    def is_of_one_class(self, least_rows: int) -> bool:
        """Return whether the float model has one class for all rows, of at least so many."""
        return self.rows >= least_rows and len(self._classes) == 1

    def _agrees(self) -> np.ndarray:
        gaps = np.concatenate(self._gaps)
        margin = _NEAR_TIE * float(np.median(gaps)) if gaps.size else 0.0
        lost = np.concatenate(self._lost)
        return (lost == 0) | (lost < margin)
