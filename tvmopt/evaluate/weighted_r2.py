"""R² of a detector's values, with the float model's scores at their positions as weights.

``1 - sum(w * (actual - expected)²) / sum(w * (expected - mean)²)``, where ``mean`` is the weighted
mean of a channel over samples and positions. Positions whose score is near 0 hold values that no
threshold lets through, and that vary at random.
"""

from __future__ import annotations

import numpy as np

from tvmopt.compare import masked_alike
from tvmopt.frontend.score_maps import channel_axis


class WeightedR2:
    """Accumulate one output over batches."""

    def __init__(self) -> None:
        self._errors: list[float] = []  # squared and weighted, of each sample
        # Of each channel: sums of weights, of weighted values and of weighted squares.
        self._sums: np.ndarray | None = None
        self._wrong = False

    def add(self, actual: np.ndarray, expected: np.ndarray, scores: np.ndarray) -> None:
        """Add samples, on the first axis.

        Args:
            actual: Values of the model, (samples, ...) with an axis of channels.
            expected: Values of the float model.
            scores: The float model's scores, with an axis of classes in place of channels.
        """
        axis = channel_axis(expected.ndim)
        got, want = masked_alike(actual, expected)
        if not np.isfinite(want).all() or not np.isfinite(got).all():
            self._wrong |= not np.array_equal(got, want, equal_nan=True)
            return
        weight = np.abs(scores.astype(np.float64)).max(axis=axis)
        got, want = (
            np.moveaxis(side.astype(np.float64), axis, 1).reshape(len(side), side.shape[axis], -1)
            for side in (got, want)
        )
        weight = weight.reshape(len(weight), 1, -1)
        self._errors += (weight * (got - want) ** 2).sum(axis=(1, 2)).tolist()
        weights = np.broadcast_to(weight, want.shape)
        sums = np.stack([(weights * want**power).sum(axis=(0, 2)) for power in range(3)])
        self._sums = sums if self._sums is None else self._sums + sums

    @property
    def value(self) -> float:
        """R², from 0 to 1."""
        error = float(np.sum(self._errors))
        if self._wrong or not np.isfinite(error):
            return 0.0
        if self._sums is None or error == 0:
            return 1.0
        weights, values, squares = self._sums
        about_mean = squares - values**2 / np.maximum(weights, np.finfo(np.float64).tiny)
        variance = float(np.maximum(about_mean, 0).sum())
        return max(0.0, 1.0 - error / variance) if variance > 0 else 0.0

    def losses(self) -> np.ndarray:
        """Return the share of each sample in what R² loses, times the number of samples."""
        return shares(self._errors, 1.0 - self.value)


def shares(errors: list[float], lost: float) -> np.ndarray:
    """Return the share of each sample's error in ``lost``, times the number of samples.

    Their mean is ``lost``.
    """
    found = np.array(errors)
    total = float(found.sum())
    if not lost or not np.isfinite(total) or total <= 0:
        return np.full(max(1, len(found)), lost)
    return found * (len(found) * lost / total)
