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
from tvmopt.quantize.bar import Bar
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.emulate import cast_layers
from tvmopt.quantize.quantizer import Quantizer

Convert = Callable[[Collection[str]], onnx.ModelProto]
"""From names of layers that stay float to the model with all others converted."""

_HOPELESS = 4.0  # times the loss of cosine that is allowed


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
        self._order = list(range(len(batches)))
        first = expected[0][0]
        self._labelled = all(
            b.labels is not None and first.ndim >= 2 and len(first) >= b.valid for b in batches
        )
        rows = sum(
            b.valid if self._labelled else math.prod(w[0].shape[:-1]) - b.padding
            for b, w in zip(batches, expected, strict=True)
        )
        scores = AccuracyMeter("fidelity", has_labels=False)
        scores.add(expected[0], expected[0], None, batches[0].valid)
        counted = self._labelled or scores.result().agreement is not None
        self._rows = rows if counted else 0

    def hardest(self, count: int) -> list[int]:
        """The batches that were worst the last time, in order."""
        return sorted(self._order[:count])

    def __call__(
        self, model: onnx.ModelProto, dtype: str, deadline: float, patient: bool = False
    ) -> Verdict:
        """Accuracy of ``model``.

        A model that is far off is not run to the end, unless ``patient``: the batches that were
        worst come first the next time. Nor is one for which time is out, which then does not hold.
        """
        session = new_session(model)
        meter = AccuracyMeter("auto", self._labelled)
        losses: dict[int, float] = {}
        cut_short = False
        for at in self._order:
            batch, want = self._batches[at], self._expected[at]
            got = session.run(None, batch.inputs)
            single = AccuracyMeter("fidelity", has_labels=False)
            labels = batch.labels if self._labelled else None
            meter.add(got, want, labels, batch.valid, batch.padding)
            single.add(got, want, None, batch.valid, batch.padding)
            losses[at] = 1 - single.result().cosine
            too_far = losses[at] > _HOPELESS * self._bar.cosine_loss(dtype)
            hopeless = too_far and not patient and not self._bar.counts(self._rows)
            if hopeless or time.monotonic() > deadline:
                cut_short = len(losses) < len(self._order)
                break
        self._order.sort(key=lambda at: -losses.get(at, 0.0))  # stable: ties keep their place
        accuracy = meter.result()
        holds = not cut_short and self._bar.holds(accuracy, dtype, self._rows)
        return Verdict(accuracy, holds)
