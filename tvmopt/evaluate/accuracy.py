"""Accuracy of a compiled model against labels, or its fidelity to the float model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tvmopt.compare import FLOAT_TOLERANCE, Tolerance, cosine, deviation
from tvmopt.errors import ConfigError
from tvmopt.evaluate.agreement import holds_rows_of_scores
from tvmopt.evaluate.agreement_meter import AgreementMeter
from tvmopt.evaluate.drop_interval import Interval, of_losses, of_metric
from tvmopt.evaluate.float_r2 import FloatR2
from tvmopt.evaluate.weighted_r2 import WeightedR2
from tvmopt.frontend.class_scores import ASSUMED, ClassScores
from tvmopt.frontend.score_maps import NONE
from tvmopt.metrics.check import AGREEMENT, FIDELITIES, FLOAT_R2
from tvmopt.metrics.metric import Metric

_SIMILAR = 0.99
"""Cosine of outputs that hold the same rows, in whatever dtype."""
_DROP_DIGITS = 12
"""Digits of a drop after the point: what differs beyond is an error of rounding."""
_ROWS_TO_TELL = 20
"""Rows that show whether a model has several classes."""


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Accuracy of a model on a dataset.

    Attributes:
        metric: ``"top1"``, a kind of fidelity, or the name of a metric of the user.
        accuracy: The user's metric, or top-1 accuracy, against labels. For fidelity, top-1
            agreement with the float model, counted or expected, when the first output holds class
            scores (2 or 3 axes), with a margin for near ties; otherwise R² with the float model's
            outputs as the truth. Of a model that sorts, the share of batches that agree.
        reference: The float model's accuracy on the same samples (1 for fidelity).
        agreement: Fraction of rows with the float model's top-1, near ties counting as any other;
            None when the first output holds no class scores.
        cosine: Minimum cosine similarity with the float model, over all outputs and batches. Of a
            model that sorts, over the batches that agree; 0 if less than half do.
        max_abs_error: Maximum absolute difference from the float model, over all outputs.
        samples: Number of evaluated samples.
        larger_is_better: Whether a larger accuracy is better.
        low: Lower end of the drop's 95% interval; None if not asked for, or where samples have no
            accuracy of their own.
        high: Its upper end.
        fidelity: What fidelity is here, and why; empty for other metrics.
        mean_loss: Mean over batches of 1 - the smallest cosine of an output; of a model that sorts,
            over the batches that agree.
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
    fidelity: str = ""
    mean_loss: float = 0.0

    @property
    def interval(self) -> Interval | None:
        """The 95% interval of the drop, paired by sample."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def drop(self) -> float:
        """Accuracy loss against the float model; negative for a gain.

        Rounded to 12 digits after the point: one row of 100 is a drop of 0.01, and no more.
        """
        lost = self.reference - self.accuracy
        return round(lost if self.larger_is_better else -lost, _DROP_DIGITS)


class AccuracyMeter:
    """Accumulate batches; :meth:`result` returns the accuracy.

    Args:
        metric: ``"auto"``, ``"top1"``, ``"fidelity"``, ``"agreement"``, ``"float_r2"``, or a metric
            of the user.
        has_labels: Whether there are labels.
        tolerance: Of the model's outputs; says whether their rows may change places.
        class_scores: Whether the first output holds scores of classes, so that models can agree on
            a row's class.
        is_expected: Whether agreement is the expected one (:mod:`.expected_disagreement`), which
            chance moves less, else the count of these rows.

    Raises:
        ConfigError: When the metric needs labels, and there are none.
    """

    def __init__(
        self,
        metric: str | Metric,
        has_labels: bool,
        tolerance: Tolerance = FLOAT_TOLERANCE,
        *,
        class_scores: ClassScores = ASSUMED,
        is_expected: bool = False,
    ) -> None:
        self._own = metric if isinstance(metric, Metric) else None
        name = self._own.name if self._own else str(metric)
        if name not in ("auto", *FIDELITIES) and not has_labels:
            raise ConfigError(
                f"metric {name!r} needs labels, but the data holds none; add an array 'labels' or "
                "use metric=fidelity"
            )
        if self._own is None and name not in FIDELITIES:
            name = "top1" if has_labels else "fidelity"
        self.metric = name
        self._kept: list[list[np.ndarray]] = []
        self._reference_kept: list[list[np.ndarray]] = []
        self._labels: list[np.ndarray] = []
        self._losses: list[np.ndarray] = []
        self._tolerance = tolerance
        self._right = self._reference_right = self._samples = 0
        self._same_batches: list[bool] = []
        self._scores = class_scores
        self._agreement: AgreementMeter | None = None
        if class_scores.found or name == AGREEMENT:
            # Other metrics read the count alone.
            self._agreement = AgreementMeter(is_expected and name in ("fidelity", AGREEMENT))
        self._float_r2: list[FloatR2 | WeightedR2] = []
        self._batch_cosines: list[float] = []
        self._max_abs_error = 0.0

    def add(
        self,
        actual: Sequence[np.ndarray],
        expected: Sequence[np.ndarray],
        labels: np.ndarray | None,
        valid: int,
        padding: int = 0,
        again: Sequence[np.ndarray] = (),
    ) -> None:
        """Add one batch.

        Args:
            actual: Outputs of the model.
            expected: Outputs of the float model.
            labels: Class indices, what the user's metric takes, or None.
            valid: Number of samples in the batch; only these rows count for top-1 against labels.
            padding: Number of trailing rows that repeat a sample; they do not count for fidelity.
            again: The float model's first output for inputs rounded anew, one array a draw, where
                :attr:`takes_again`; all batches have as many.

        Raises:
            ConfigError: When outputs and labels do not fit each other or the metric.
        """
        self._samples += valid
        actual = self._tolerance.in_order(actual, expected)
        agrees = not self._sorts or self._agrees(actual, expected)
        if agrees:
            self._batch_cosines.append(1.0)
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
            self._same_batches.append(agrees)
            return
        self._add_agreement(first, wanted, padding, again)
        if self._takes_float_r2:
            self._add_float_r2(actual, expected, valid, padding)

    @property
    def last_cosine(self) -> float:
        """The smallest cosine of the last batch's outputs; 0 where its rows are others."""
        agrees = not self._sorts or self._same_batches[-1]
        return self._batch_cosines[-1] if agrees else 0.0

    @property
    def takes_again(self) -> bool:
        """Whether rows are compared by their class, as far as is known."""
        return (
            self._agreement is not None
            and not self._sorts
            and self.metric in ("fidelity", AGREEMENT)
        )

    def _add_agreement(
        self,
        first: np.ndarray,
        wanted: np.ndarray,
        padding: int,
        again: Sequence[np.ndarray],
    ) -> None:
        if self._agreement is None:
            return
        if holds_rows_of_scores(first):
            rows = slice(0, len(first) - padding)
            self._agreement.add(first[rows], wanted[rows], [one[rows] for one in again])
        elif self.metric == AGREEMENT:
            raise ConfigError(
                "metric 'agreement' needs a first output of shape (batch, classes) or (batch, "
                f"steps, classes), but got {first.shape}; use metric=float_r2"
            )
        else:
            self._agreement = None

    @property
    def has_r2(self) -> bool:
        """Whether fidelity is R² on the batches so far."""
        return not self._sorts and self._used_agreement is None and bool(self._float_r2)

    @property
    def _takes_float_r2(self) -> bool:
        """Whether fidelity may be R²: as long as no table of scores says otherwise."""
        if self.metric == "fidelity":
            return self._agreement is None or self._scores.doubtful
        return self.metric == FLOAT_R2

    def _add_float_r2(
        self,
        actual: Sequence[np.ndarray],
        expected: Sequence[np.ndarray],
        valid: int,
        padding: int,
    ) -> None:
        maps = self._scores.maps or (NONE,) * len(expected)
        if not self._float_r2:
            self._float_r2 = [FloatR2() if at == NONE else WeightedR2() for at in maps]
        for found, at, got, want in zip(self._float_r2, maps, actual, expected, strict=True):
            got, want = np.asarray(got), np.asarray(want)
            if isinstance(found, WeightedR2):
                found.add(got[:valid], want[:valid], np.asarray(expected[at])[:valid])
            elif want.ndim and len(want) == valid + padding:
                found.add(got[:valid], want[:valid])
            else:  # an output without an axis of samples is one sample
                found.add(got[None], want[None])

    def result(self, *, with_interval: bool = False) -> Accuracy:
        """Return the accuracy over all batches so far.

        Args:
            with_interval: Whether to resample for the interval of the drop, which takes up to two
                seconds.
        """
        rows = self._agreement.counted if self._agreement is not None else None
        strict = rows.strict if rows is not None and rows.rows else None
        larger_is_better, fidelity = True, ""
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
            accuracy, fidelity = self._fidelity()
            reference = 1.0
        low, high = (self._interval() if with_interval else None) or (None, None)
        return Accuracy(
            self.metric,
            accuracy,
            reference,
            strict,
            self._smallest_cosine,
            self._max_abs_error,
            self._samples,
            larger_is_better,
            low,
            high,
            fidelity,
            1 - float(np.mean(self._batch_cosines)) if self._batch_cosines else 0.0,
        )

    @property
    def _smallest_cosine(self) -> float:
        if 2 * sum(self._same_batches) < len(self._same_batches):
            return 0.0
        return min(self._batch_cosines, default=1.0)

    def _fidelity(self) -> tuple[float, str]:
        """Return the fidelity, and what it is."""
        if self._sorts:
            same = "share of batches with the float model's rows, since the model sorts"
            return float(np.mean(self._same_batches)), same
        why = "as asked" if self.metric != "fidelity" else self._scores.why
        found = self._used_agreement
        if found is not None:
            return found.result(why)
        if self.metric == "fidelity" and self._scores.found:
            why = "the first output is no table of scores"
            if self._agreement is not None:
                why = "the first output has its largest value in one column for all samples"
        values = [output.value for output in self._float_r2]
        worst = f", the least of {len(values)} outputs" if len(values) > 1 else ""
        if self._scores.maps:
            worst += ", values of a detector weighted with the float model's scores at their places"
        return min(values, default=1.0), f"R2 with the float model as the truth{worst} ({why})"

    @property
    def _used_agreement(self) -> AgreementMeter | None:
        """The agreement where fidelity is that."""
        found = self._agreement
        if found is None or not found.counted.rows or self.metric not in ("fidelity", AGREEMENT):
            return None
        if self.metric == "fidelity" and self._scores.doubtful:
            return None if found.counted.is_of_one_class(_ROWS_TO_TELL) else found
        return found

    def _interval(self) -> Interval | None:
        """Return the 95% interval of the drop; None where samples have no accuracy of their own."""
        if self._own is not None:
            labels = np.concatenate(self._labels)
            return of_metric(self._own, self._kept, self._reference_kept, labels)
        if self.metric == "top1":
            losses = np.concatenate(self._losses)
        elif self._sorts:
            losses = 1.0 - np.array(self._same_batches)
        elif (agreement := self._used_agreement) is not None:
            return agreement.interval()
        elif self._float_r2 and self._samples > 1:
            worst = min(self._float_r2, key=lambda output: output.value)
            return of_losses(worst.losses(), counted=False)
        else:
            return None
        return of_losses(losses)

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
        self._batch_cosines[-1] = min(self._batch_cosines[-1], cosine(got, want))
        if np.isfinite(deviation(got, want)):
            finite = np.isfinite(want)
            difference = np.abs(got[finite].astype(np.float64) - want[finite]).max(initial=0.0)
            self._max_abs_error = max(self._max_abs_error, float(difference))
        else:  # NaN or infinity is correct only where the float model has the same
            self._max_abs_error = float(np.finfo(np.float32).max)
