"""Accuracy of a model with many layers converted together."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Sequence

import numpy as np
import onnx

from tvmopt.evaluate.accuracy import Accuracy, AccuracyMeter
from tvmopt.evaluate.dataset import Batch, is_class_indices
from tvmopt.frontend.class_scores import ASSUMED, ClassScores
from tvmopt.quantize.bar import Bar, MeasuredAccuracy
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.emulate import cast_layers
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
    """Accuracy of a converted model, and whether it meets the bar."""

    accuracy: Accuracy
    holds: bool


class Judge:
    """Compare converted models with the float model on some samples.

    Args:
        batches: The samples.
        expected: Outputs of the float model on them.
        bar: Accuracy bar of a converted model.
        class_scores: As of :class:`~tvmopt.evaluate.accuracy.AccuracyMeter`.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        expected: Sequence[Sequence[np.ndarray]],
        bar: Bar,
        *,
        class_scores: ClassScores = ASSUMED,
    ) -> None:
        self.class_scores = class_scores
        self._batches, self._expected, self._bar = batches, expected, bar
        self._order = list(range(len(batches)))  # worst first, after the first measurement
        self._batch_s = 0.0
        first = expected[0][0]
        self._labelled = all(
            is_class_indices(b.labels) and first.ndim >= 2 and len(first) >= b.valid
            for b in batches
        )
        scores = AccuracyMeter("fidelity", has_labels=False, class_scores=class_scores)
        scores.add(expected[0], expected[0], None, batches[0].valid)
        self._counted = self._labelled or scores.result().agreement is not None

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
    ) -> JointVerdict:
        """Measure the accuracy of ``model``.

        The previously worst batches run first. A model far off the bar stops early unless
        ``patient``. When a dozen runs over all batches exceed the remaining time, only the worst
        batches run, at least eight. When time runs out, the model does not hold.

        Args:
            model: The converted model.
            dtype: Its dtype.
            deadline: Time limit, by :func:`time.monotonic`.
            patient: Run all batches.
            bar: Replaces the judge's bar.
        """
        bar = bar or self._bar
        session = new_session(model)
        meter = AccuracyMeter("auto", self._labelled, class_scores=self.class_scores)
        order = self._order if patient else self._order[: self._affordable(deadline)]
        samples = sum(self._batches[at].valid for at in order)
        coarse = not bar.counts(sum(self._rows(at) for at in order), samples)
        losses: dict[int, float] = {}
        drops: list[float] = []
        start = time.monotonic()
        for at in order:
            batch, want = self._batches[at], self._expected[at]
            got = session.run(None, batch.inputs)
            single = AccuracyMeter("auto", self._labelled, class_scores=self.class_scores)
            labels = batch.labels if self._labelled else None
            for each in (meter, single):
                each.add(got, want, labels, batch.valid, batch.padding)
            alone = single.result()
            losses[at] = 1 - alone.cosine
            drops.append(alone.drop)
            hopeless = losses[at] > _HOPELESS * bar.cosine_loss(dtype)
            if (hopeless and coarse and not patient) or time.monotonic() > deadline:
                break
        self._batch_s = (time.monotonic() - start) / len(losses)
        self._order.sort(key=lambda at: -losses.get(at, 0.0))  # stable sort: ties keep their order
        everywhere = len(losses) == len(self._order)  # the worst batches are not a random sample
        measured = MeasuredAccuracy(
            meter.result(),
            sum(self._rows(at) for at in losses),
            tuple(drops),
            tuple(losses.values()) if everywhere else (),
        )
        complete = len(losses) == len(order)
        return JointVerdict(measured.accuracy, complete and bar.holds(measured, dtype))

    def _affordable(self, deadline: float) -> int:
        left = max(0.0, deadline - time.monotonic())
        return max(_LEAST_BATCHES, int(left / _MEASUREMENTS / max(self._batch_s, 1e-6)))

    def _rows(self, at: int) -> int:
        """Return the number of rows of a batch that count for top-1."""
        batch, first = self._batches[at], self._expected[at][0]
        if self._labelled:
            return batch.valid
        return math.prod(first.shape[:-1]) - batch.padding if self._counted else 0
