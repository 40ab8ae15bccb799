"""Accuracy of a compiled model against labels, or its fidelity to the float model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tvmopt.compare import FLOAT_TOLERANCE, Tolerance, cosine, deviation
from tvmopt.errors import ConfigError
from tvmopt.evaluate.drop_interval import Interval, of_losses, of_metric
from tvmopt.metrics.metric import Metric

_SIMILAR = 0.99
"""Cosine of outputs that hold the same rows, in whatever dtype."""
_TIE = 1e-5
"""Scores nearer than this, relative to the larger one (at least 1), are equal in float32."""


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Accuracy of a model on a dataset.

    Attributes:
        metric: ``"top1"``, ``"fidelity"``, or the name of a metric of the user.
        accuracy: The user's metric, or top-1 accuracy, against labels. For fidelity, top-1
            agreement with the float model when the first output holds class scores (2 or 3 axes),
            otherwise the cosine; of a model that sorts, the share of batches that agree.
        reference: The float model's accuracy on the same samples (1 for fidelity).
        agreement: Fraction of rows with the float model's top-1; None when the first output holds
            no class scores.
        cosine: Minimum cosine similarity with the float model, over all outputs and batches. Of a
            model that sorts, over the batches that agree; 0 if less than half do.
        max_abs_error: Maximum absolute difference from the float model, over all outputs.
        samples: Number of evaluated samples.
        larger_is_better: Whether a larger accuracy is better.
        low: Lower end of the drop's 95% interval; None if not asked for, or where samples have no
            accuracy of their own.
        high: Its upper end.
    """

    metric: str
    accuracy: float
    reference: float
    agreement: float | None
    cosine: float
    max_abs_error: float
    samples: int
    larger_is_better: bool = True
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> Interval | None:
        """The 95% interval of the drop, paired by sample."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def drop(self) -> float:
        """Accuracy loss against the float model; negative for a gain."""
        lost = self.reference - self.accuracy
        return lost if self.larger_is_better else -lost


def _is_scores(output: np.ndarray) -> bool:
    # (batch, classes) or (batch, steps, classes). The last axis of an image is spatial, not a
    # class.
    return output.dtype.kind == "f" and output.ndim in (2, 3) and output.shape[-1] > 1


def _top1_agrees(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return per row whether the top-1 is the float model's; tied classes count as equal."""
    classes = expected.shape[-1]
    got, want = actual.reshape(-1, classes), expected.reshape(-1, classes).astype(np.float64)
    top = want.max(axis=1)
    chosen = want[np.arange(len(want)), got.argmax(axis=1)]
    return chosen >= top - _TIE * np.maximum(1.0, np.abs(top))


class AccuracyMeter:
    """Accumulate batches; :meth:`result` returns the accuracy.

    Args:
        metric: ``"auto"``, ``"top1"``, ``"fidelity"``, or a metric of the user.
        has_labels: Whether there are labels.
        tolerance: Of the model's outputs; says whether their rows may change places.
        class_scores: Whether the first output holds scores of classes, so that models can agree on
            a row's class.
    """

    def __init__(
        self,
        metric: str | Metric,
        has_labels: bool,
        tolerance: Tolerance = FLOAT_TOLERANCE,
        *,
        class_scores: bool = True,
    ) -> None:
        self._own = metric if isinstance(metric, Metric) else None
        name = self._own.name if self._own else str(metric)
        if name not in ("auto", "fidelity") and not has_labels:
            raise ConfigError(
                f"metric {name!r} needs labels, but the data holds none; add an array 'labels' or "
                "use metric=fidelity"
            )
        built_in = "top1" if has_labels and name != "fidelity" else "fidelity"
        self.metric = name if self._own else built_in
        self._kept: list[list[np.ndarray]] = []
        self._reference_kept: list[list[np.ndarray]] = []
        self._labels: list[np.ndarray] = []
        self._losses: list[np.ndarray] = []
        self._tolerance = tolerance
        self._right = self._reference_right = self._agreed = self._rows = self._samples = 0
        self._scores = class_scores
        self._cosine = 1.0
        self._max_abs_error = 0.0

    def add(
        self,
        actual: Sequence[np.ndarray],
        expected: Sequence[np.ndarray],
        labels: np.ndarray | None,
        valid: int,
        padding: int = 0,
    ) -> None:
        """Add one batch.

        Args:
            actual: Outputs of the model.
            expected: Outputs of the float model.
            labels: Class indices, what the user's metric takes, or None.
            valid: Number of samples in the batch; only these rows count for top-1 against labels.
            padding: Number of trailing rows that repeat a sample; they do not count for the top-1
                agreement.
        """
        self._samples += valid
        actual = self._tolerance.in_order(actual, expected)
        agrees = not self._sorts or self._agrees(actual, expected)
        if agrees:
            for got, want in zip(actual, expected, strict=True):
                self._compare(np.asarray(got), np.asarray(want))
        first, wanted = np.asarray(actual[0]), np.asarray(expected[0])
        if self._own is not None and labels is not None:
            self._labels.append(labels[:valid])
            self._kept.append(self._own.kept(actual, labels[:valid]))
            self._reference_kept.append(self._own.kept(expected, labels[:valid]))
        elif self.metric == "top1":
            self._top1(first, wanted, labels, valid)
        if self._sorts:
            self._agreed += agrees
            self._rows += 1
            self._lost(np.array([1.0 - agrees]))
        elif self._scores and _is_scores(first):
            rows = slice(0, len(first) - padding)
            same = _top1_agrees(first[rows], wanted[rows])
            self._agreed += int(same.sum())
            self._rows += same.size
            # The steps of a sample are not independent.
            self._lost(1.0 - same.reshape(len(first[rows]), -1).mean(axis=1))
        else:
            self._scores = False

    def result(self, *, with_interval: bool = False) -> Accuracy:
        """Return the accuracy over all batches so far.

        Args:
            with_interval: Whether to resample for the interval of the drop, which takes up to two
                seconds.
        """
        agreement = self._agreed / self._rows if self._scores and self._rows else None
        larger_is_better = True
        if self._own is not None:
            labels = np.concatenate(self._labels)
            accuracy, reference = (
                self._own(self._kept, labels),
                self._own(self._reference_kept, labels),
            )
            larger_is_better = self._own.larger_is_better
        elif self.metric == "top1":
            accuracy = self._right / self._samples
            reference = self._reference_right / self._samples
        else:
            accuracy = agreement if agreement is not None else self._cosine
            reference = 1.0
        interval = self._interval() if with_interval else None
        return Accuracy(
            self.metric,
            accuracy,
            reference,
            agreement,
            0.0 if self._sorts and 2 * self._agreed < self._rows else self._cosine,
            self._max_abs_error,
            self._samples,
            larger_is_better,
            *(interval or (None, None)),
        )

    def _lost(self, losses: np.ndarray) -> None:
        """Note what samples lose in agreement, where that is the accuracy."""
        if self.metric == "fidelity":
            self._losses.append(losses)

    def _interval(self) -> Interval | None:
        """Return the 95% interval of the drop; None where samples have no accuracy of their own."""
        if self._own is not None:
            labels = np.concatenate(self._labels)
            return of_metric(self._own, self._kept, self._reference_kept, labels)
        if not self._losses or (self.metric == "fidelity" and not self._scores and not self._sorts):
            return None
        return of_losses(np.concatenate(self._losses))

    @property
    def _sorts(self) -> bool:
        return self._tolerance.measure == "rows"

    def _agrees(self, actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
        """Return whether a batch has the same rows: a score at a threshold may add or drop one."""
        pairs = [
            (np.asarray(got), np.asarray(want)) for got, want in zip(actual, expected, strict=True)
        ]
        return all(
            deviation(got, want) <= self._tolerance.limit or cosine(got, want) >= _SIMILAR
            for got, want in pairs
        )

    def _top1(
        self, actual: np.ndarray, expected: np.ndarray, labels: np.ndarray | None, valid: int
    ) -> None:
        if labels is None or actual.ndim < 2 or len(actual) < valid or len(labels) < valid:
            raise ConfigError(
                "metric 'top1' needs a first output of shape (batch, classes) and one label a row, "
                f"but got output {actual.shape} and {0 if labels is None else len(labels)} labels; "
                "use metric=fidelity, or one that fits the labels"
            )
        rows = slice(0, valid)
        labels = labels[rows]
        classes = actual[rows].reshape(valid, -1).shape[1]
        if labels.size and labels.max() >= classes:
            raise ConfigError(
                f"labels must be class indices below {classes}, the classes of the first output, "
                f"but the data holds {labels.max()}"
            )
        right, wanted = (
            side[rows].reshape(valid, -1).argmax(1) == labels for side in (actual, expected)
        )
        self._right += int(right.sum())
        self._reference_right += int(wanted.sum())
        self._losses.append(wanted.astype(np.float64) - right)

    def _compare(self, got: np.ndarray, want: np.ndarray) -> None:
        if got.shape != want.shape:
            raise ConfigError(f"outputs must have shape {want.shape}, but got {got.shape}")
        if want.size == 0:
            return
        self._cosine = min(self._cosine, cosine(got, want))
        if np.isfinite(deviation(got, want)):
            finite = np.isfinite(want)
            difference = np.abs(got[finite].astype(np.float64) - want[finite]).max(initial=0.0)
            self._max_abs_error = max(self._max_abs_error, float(difference))
        else:  # NaN or infinity is correct only where the float model has the same
            self._max_abs_error = float(np.finfo(np.float32).max)
