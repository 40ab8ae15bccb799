"""Accuracy of a model with many layers converted together."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Sequence

import numpy as np
import onnx

from tvmopt.evaluate.accuracy import Accuracy, AccuracyMeter
from tvmopt.evaluate.dataset import Batch
from tvmopt.quantize.bar import Bar, Measured
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.emulate import cast_layers
from tvmopt.quantize.quantizer import Quantizer

Convert = Callable[[Collection[str]], onnx.ModelProto]
"""From names of layers that stay float to the model with all others converted."""

_HOPELESS = 4.0  # times the loss of cosine that is allowed
_LEAST_BATCHES = 8
_MEASUREMENTS = 10  # that should fit into the time left


def converter(
    model: onnx.ModelProto, dtype: str, layers: Sequence[str], quantizer: Quantizer | None
) -> Convert:
    """Conversion of ``layers`` (names) but for those given."""
    if dtype == "int8":
        assert quantizer is not None
        return quantizer
    return lambda exclude: cast_layers(model, dtype, set(layers) - set(exclude))


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Accuracy of a converted model, and whether it meets the bar."""

    accuracy: Accuracy
    holds: bool


class Judge:
    """Compares converted models with the float model on some samples.

    Args:
        batches: The samples.
        expected: Outputs of the float model on them.
        bar: What a converted model must keep.
    """

    def __init__(
        self, batches: Sequence[Batch], expected: Sequence[Sequence[np.ndarray]], bar: Bar
    ) -> None:
        self._batches, self._expected, self._bar = batches, expected, bar
        self._order = list(range(len(batches)))  # worst first, once something has been measured
        self._batch_s = 0.0
        first = expected[0][0]
        self._labelled = all(
            b.labels is not None and first.ndim >= 2 and len(first) >= b.valid for b in batches
        )
        scores = AccuracyMeter("fidelity", has_labels=False)
        scores.add(expected[0], expected[0], None, batches[0].valid)
        self._counted = self._labelled or scores.result().agreement is not None

    def hardest(self, count: int) -> list[int]:
        """The batches that were worst the last time, in order."""
        return sorted(self._order[:count])

    def __call__(
        self,
        model: onnx.ModelProto,
        dtype: str,
        deadline: float,
        *,
        patient: bool = False,
        bar: Bar | None = None,
    ) -> Verdict:
        """Accuracy of ``model``.

        The batches that were worst before come first, and a model that is far off is not run to
        the end, unless ``patient``. Where a dozen runs of all batches do not fit into the time,
        only the worst are run, eight at least. Where time is out before, the model does not hold.
        A ``bar`` takes the place of the usual one.
        """
        bar = bar or self._bar
        session = new_session(model)
        meter = AccuracyMeter("auto", self._labelled)
        order = self._order if patient else self._order[: self._affordable(deadline)]
        samples = sum(self._batches[at].valid for at in order)
        coarse = not bar.counts(sum(self._rows(at) for at in order), samples)
        losses: dict[int, float] = {}
        drops: list[float] = []
        start = time.monotonic()
        for at in order:
            batch, want = self._batches[at], self._expected[at]
            got = session.run(None, batch.inputs)
            single = AccuracyMeter("auto", self._labelled)
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
        self._order.sort(key=lambda at: -losses.get(at, 0.0))  # stable: ties keep their place
        everywhere = len(losses) == len(self._order)  # the worst alone are no sample of others
        measured = Measured(
            meter.result(),
            sum(self._rows(at) for at in losses),
            tuple(drops),
            tuple(losses.values()) if everywhere else (),
        )
        complete = len(losses) == len(order)
        return Verdict(measured.accuracy, complete and bar.holds(measured, dtype))

    def _affordable(self, deadline: float) -> int:
        left = max(0.0, deadline - time.monotonic())
        return max(_LEAST_BATCHES, int(left / _MEASUREMENTS / max(self._batch_s, 1e-6)))

    def _rows(self, at: int) -> int:
        """Rows of a batch whose top-1 is looked at."""
        batch, first = self._batches[at], self._expected[at][0]
        if self._labelled:
            return batch.valid
        return math.prod(first.shape[:-1]) - batch.padding if self._counted else 0
