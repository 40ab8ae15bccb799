"""Accuracy of a model with many layers converted together."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx

from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import Accuracy, AccuracyMeter
from tvmopt.evaluate.agreement import excess
from tvmopt.evaluate.dataset import Batch, is_class_indices
from tvmopt.evaluate.drop_interval import Interval, of_expected, unseen_drop
from tvmopt.evaluate.expected_disagreement import expected_disagreement
from tvmopt.frontend.class_scores import ASSUMED, ClassScores
from tvmopt.metrics.check import FIDELITIES
from tvmopt.metrics.metric import Metric
from tvmopt.quantize.bar import Bar, MeasuredAccuracy
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.emulate import cast_layers
from tvmopt.quantize.metric_drop import MetricDrop
from tvmopt.quantize.quantizer import Quantizer

Convert = Callable[[Collection[str]], onnx.ModelProto]
"""From names of layers that stay float to the model with all others converted."""

_HOPELESS = 4.0  # multiple of the allowed cosine loss at which measuring stops
_LEAST_BATCHES = 8
_MEASUREMENTS = 10  # number of measurements that should fit into the remaining time


def converter(
    model: onnx.ModelProto, dtype: str, layers: Sequence[str], quantizer: Quantizer | None
) -> Convert:
    """Return a function that converts ``layers`` (names) except the given ones."""
    if dtype == "int8":
        assert quantizer is not None
        return quantizer
    return lambda exclude: cast_layers(model, dtype, set(layers) - set(exclude))


@dataclasses.dataclass(frozen=True)
class JointVerdict:
    """Accuracy of a converted model, and whether it meets the bar.

    Attributes:
        accuracy: Accuracy over the measured batches.
        holds: Whether the model meets the bar.
        losses: 1 - cosine of each batch; empty unless all batches were measured.
        expected_drop: Drop that is expected from the class scores, where it decides; else None. It
            is above 0 where too few samples were measured to count a changed class.
        most_drop: Upper end of the drop's 95% interval, where it decides; else None.
        is_likely: Whether the samples are too few to show that the model meets the bar, and its
            drop is within the limit by one standard error.
        samples_to_decide: Number of samples that would show it, where it is likely; else 0.
        drops: Drop of each measured batch, by its position, where rows are counted; else 0.
        is_cut: Whether time ran out before the batches did.
    """

    accuracy: Accuracy
    holds: bool
    losses: tuple[float, ...] = ()
    expected_drop: float | None = None
    most_drop: float | None = None
    is_likely: bool = False
    samples_to_decide: int = 0
    drops: Mapping[int, float] = dataclasses.field(default_factory=dict)
    is_cut: bool = False

    @property
    def drop(self) -> float:
        """The drop that decides: the expected one, if any, else the accuracy's."""
        return self.accuracy.drop if self.expected_drop is None else self.expected_drop

    @property
    def mean_loss(self) -> float | None:
        """The mean of ``losses``; None where there are none."""
        return statistics.fmean(self.losses) if self.losses else None


class Judge:
    """Compare converted models with the float model on some samples.

    Args:
        batches: The samples.
        expected: Outputs of the float model on them.
        bar: Accuracy bar of a converted model.
        class_scores: As of :class:`~tvmopt.evaluate.accuracy.AccuracyMeter`.
        metric: Name of a built-in metric, or one of the user, which needs labels.
        again: Returns the float model's first outputs for the inputs of a batch rounded anew, see
            :mod:`tvmopt.evaluate.input_rounding`; called where classes are compared.

    Attributes:
        class_scores: As given.
        by_r2: Whether the accuracy is the share of the variance that outputs keep, no count.
        batch_s: Seconds that a batch took in the last measurement.

    Raises:
        ConfigError: When the user's metric fails on the float model's outputs.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        expected: Sequence[Sequence[np.ndarray]],
        bar: Bar,
        *,
        class_scores: ClassScores = ASSUMED,
        metric: Metric | str = "auto",
        again: Callable[[Batch], Sequence[np.ndarray]] | None = None,
    ) -> None:
        self.class_scores = class_scores
        self._asked: MetricDrop | None = None
        if isinstance(metric, Metric):
            self._asked = MetricDrop(metric, batches, expected)
            metric = "fidelity"
        self._batches, self._expected, self._bar = batches, expected, bar
        self._order = list(range(len(batches)))  # worst first, after the first measurement
        self.batch_s = 0.0
        first = expected[0][0]
        self._labelled = metric not in FIDELITIES and all(
            is_class_indices(b.labels) and first.ndim >= 2 and len(first) >= b.valid
            for b in batches
        )
        self._metric = metric if metric in FIDELITIES else "auto"
        scores = self._meter()
        scores.add(expected[0], expected[0], batches[0].labels, batches[0].valid)
        self._counted = self._labelled or scores.result().agreement is not None
        self._again: list[Sequence[np.ndarray]] = [()] * len(batches)
        if again is not None and self._counted and not self._labelled:
            self._again = [list(again(batch)) for batch in batches]
        # How the drop is known from few samples; else closeness to the float model decides.
        self._scored = self._counted and not self._labelled
        self._by_scores = self._asked is None and self._scored
        self.by_r2 = self._asked is None and not self._counted and scores.has_r2

    def samples_to_tell(self) -> int:
        """Return the number of samples that tells whether a drop is within the bar.

        0 where the accuracy is no count of rows, or the bar is one of the cosine alone.
        """
        samples = sum(batch.valid for batch in self._batches)
        rows = sum(self._rows(at) for at in range(len(self._batches))) / samples
        if self._bar.max_drop == 0 or (not rows and self._asked is None):
            return 0
        return self._bar.samples_to_tell(rows if self._asked is None else 1.0)

    @property
    def by_closeness(self) -> bool:
        """Whether closeness to the float model decides where samples are too few to count rows."""
        samples = sum(batch.valid for batch in self._batches)
        if self._by_scores:
            return unseen_drop(samples) >= self._bar.max_drop
        return not self.by_r2

    def hardest(self, count: int) -> list[int]:
        """Return the batches that were worst in the last measurement, in order."""
        return sorted(self._order[:count])

    def __call__(
        self,
        model: onnx.ModelProto,
        dtype: str,
        deadline: float,
        *,
        patient: bool = False,
        bar: Bar | None = None,
        measurements: int = _MEASUREMENTS,
        most: int | None = None,
        outputs: dict[int, Sequence[np.ndarray]] | None = None,
    ) -> JointVerdict:
        """Measure the accuracy of ``model``.

        The previously worst batches run first. A model far off the bar stops early unless
        ``patient``. When ``measurements`` runs over all batches exceed the remaining time, only the
        worst batches run, at least eight. When time runs out, the model does not hold.

        Args:
            model: The converted model.
            dtype: Its dtype.
            deadline: Time limit, by :func:`time.monotonic`.
            patient: Run all batches.
            bar: Replaces the judge's bar.
            measurements: Number of measurements that should fit into the remaining time.
            most: Measure no more batches than these, the worst ones, whatever the time. The model
                then does not hold, for they are too few to tell.
            outputs: Outputs of the model by batch; those that are known are not computed, and the
                others are added.
        """
        bar = bar or self._bar
        session = new_session(model)
        meter = self._meter()
        order = self._order
        if not patient and self._asked is None and not self.by_r2:  # those are of all samples
            order = order[: self._affordable(deadline, measurements)]
        order = order[:most]
        samples = sum(self._batches[at].valid for at in order)
        rows = sum(self._rows(at) for at in order)
        # Where closeness decides, one sample far off is enough.
        near = self._asked is None and not self.by_r2 and not self._by_scores
        by_cosine = bar.max_drop == 0 and self._asked is None
        coarse = by_cosine or (near and not bar.counts(rows, samples))
        scored: dict[int, np.ndarray] = {}
        kept: dict[int, Sequence[np.ndarray]] = {}
        losses: dict[int, float] = {}
        drops: dict[int, float] = {}
        start, computed, is_cut = time.monotonic(), 0, False
        for at in order:
            batch, want = self._batches[at], self._expected[at]
            got = outputs.get(at) if outputs is not None else None
            if got is None:
                got, computed = session.run(None, batch.inputs), computed + 1
            if outputs is not None:
                outputs[at] = got
            labels = batch.labels if self._labelled else None
            again = self._again[at] if self._asked is None else ()
            meter.add(got, want, labels, batch.valid, batch.padding, again)
            drop = 0.0
            if self._asked is None and not self.by_r2:  # rows of this batch count
                single = self._meter()
                single.add(got, want, labels, batch.valid, batch.padding, again)
                drop = single.result().drop
            if self._scored:
                scored[at] = np.asarray(got[0])
            if self._asked is not None:
                kept[at] = self._asked.kept(at, got)
            losses[at] = 1 - meter.last_cosine
            drops[at] = drop
            hopeless = losses[at] > _HOPELESS * bar.cosine_loss(dtype)
            is_cut = most is None and time.monotonic() > deadline and len(losses) < len(order)
            if is_cut or (hopeless and coarse and not patient):
                break
        self.batch_s = (time.monotonic() - start) / max(1, computed)
        self._order.sort(key=lambda at: -losses.get(at, 0.0))  # stable sort: ties keep their order
        everywhere = len(losses) == len(self._order)  # the worst batches are not a random sample
        measured = MeasuredAccuracy(
            meter.result(),
            sum(self._rows(at) for at in losses),
            tuple(drops.values()),
            tuple(losses.values()) if everywhere else (),
        )
        if len(losses) < len(order) or most is not None:
            return JointVerdict(measured.accuracy, False, drops=drops, is_cut=is_cut)
        if self._asked is None:
            verdict = self._by_fidelity(measured, dtype, bar, meter, scored)
            return dataclasses.replace(verdict, drops=drops)

        def is_close() -> bool:
            return self._scored and self._by_scored(measured, dtype, bar, scored).holds

        return self._by_metric(self._asked, kept, measured, dtype, bar, is_close)

    def _by_fidelity(
        self,
        measured: MeasuredAccuracy,
        dtype: str,
        bar: Bar,
        meter: AccuracyMeter,
        scored: dict[int, np.ndarray],
    ) -> JointVerdict:
        if self._by_scores and not bar.counts(measured.rows, measured.accuracy.samples):
            return self._by_scored(measured, dtype, bar, scored)
        drop, interval = measured.accuracy.drop, None
        if self.by_r2:
            interval = meter.result(with_interval=True).interval
            holds = bar.holds_by_mean(measured, dtype, drop, interval)
        else:
            holds = bar.holds(measured, dtype)
            if not holds and bar.counts(measured.rows, measured.accuracy.samples):
                interval = meter.result(with_interval=True).interval
        verdict = JointVerdict(measured.accuracy, holds, measured.losses)
        return self._with_odds(verdict, bar, drop, interval)

    def _by_scored(
        self, measured: MeasuredAccuracy, dtype: str, bar: Bar, scored: dict[int, np.ndarray]
    ) -> JointVerdict:
        wanted = [np.asarray(self._expected[at][0]) for at in scored]
        drawn = list(zip(*(self._again[at] for at in scored), strict=True))
        shares = expected_disagreement(list(scored.values()), wanted, drawn)
        drop = float(excess(shares.mean(axis=0)))
        tells = unseen_drop(len(shares)) < bar.max_drop
        interval = of_expected(shares) if tells else None
        holds = bar.holds_by_mean(measured, dtype, drop, interval)
        return self._with_odds(
            JointVerdict(measured.accuracy, holds, measured.losses, drop), bar, drop, interval
        )

    def _by_metric(
        self,
        asked: MetricDrop,
        kept: dict[int, Sequence[np.ndarray]],
        measured: MeasuredAccuracy,
        dtype: str,
        bar: Bar,
        is_close: Callable[[], bool],
    ) -> JointVerdict:
        try:
            accuracy = asked.accuracy(kept, measured.accuracy)
        except ConfigError:  # the float model has a number: outputs of this one are NaN or such
            return JointVerdict(measured.accuracy, False)
        found = dataclasses.replace(measured, accuracy=accuracy)
        interval = asked.interval(kept)
        # Expected changes of classes take long where there are many classes.
        holds = bar.holds_by_metric(found, dtype, lambda: interval) or (
            bar.holds_by_metric(found, dtype, lambda: interval, True) and is_close()
        )
        verdict = JointVerdict(accuracy, holds, measured.losses)
        return self._with_odds(verdict, bar, accuracy.drop, interval)

    def _with_odds(
        self, verdict: JointVerdict, bar: Bar, drop: float, interval: Interval | None
    ) -> JointVerdict:
        """Return the verdict with the upper end of the interval, and what more samples may show."""
        if interval is None:
            return verdict
        samples = verdict.accuracy.samples
        is_likely = not verdict.holds and bar.is_likely(drop, interval, samples)
        needed = 0
        if is_likely:
            of_metric = self._asked is not None
            needed = bar.samples_to_decide(drop, interval, samples, of_metric=of_metric)
        return dataclasses.replace(
            verdict, most_drop=interval[1], is_likely=is_likely, samples_to_decide=needed
        )

    def _meter(self) -> AccuracyMeter:
        return AccuracyMeter(self._metric, self._labelled, class_scores=self.class_scores)

    def _affordable(self, deadline: float, measurements: int) -> int:
        left = max(0.0, deadline - time.monotonic())
        return max(_LEAST_BATCHES, int(left / measurements / max(self.batch_s, 1e-6)))

    def _rows(self, at: int) -> int:
        """Return the number of rows of a batch that count for top-1."""
        batch, first = self._batches[at], self._expected[at][0]
        if self._labelled:
            return batch.valid
        return math.prod(first.shape[:-1]) - batch.padding if self._counted else 0
