"""Drop of a user's metric in a converted model, on the samples of a judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.evaluate.dataset import Batch
from tvmopt.evaluate.drop_interval import Interval, of_metric
from tvmopt.metrics.metric import Metric

_INTERVAL_S = 0.5  # of each of dozens of skip sets

Kept = Sequence[np.ndarray]


class MetricDrop:
    """Compare converted models with the float model by a metric of all samples.

    Args:
        metric: The metric.
        batches: The samples, with labels.
        expected: Outputs of the float model on them.

    Raises:
        ConfigError: When there are no labels, or the metric fails on the float model's outputs.
    """

    def __init__(self, metric: Metric, batches: Sequence[Batch], expected: Sequence[Kept]) -> None:
        labels = [batch.labels for batch in batches if batch.labels is not None]
        if len(labels) < len(batches):
            raise ConfigError(
                f"metric {metric.name!r} needs labels, but the data holds none"
                "; add an array labels to data"
            )
        self._metric, self._of_batches = metric, labels
        self._labels = np.concatenate(labels)
        self._expected = [self.kept(at, outputs) for at, outputs in enumerate(expected)]
        self._reference = metric(self._expected, self._labels)

    def kept(self, at: int, outputs: Kept) -> Kept:
        """Return what the metric keeps of the outputs of batch ``at``."""
        return self._metric.kept(outputs, self._of_batches[at])

    def accuracy(self, kept: Mapping[int, Kept], fidelity: Accuracy) -> Accuracy:
        """Return the accuracy by the metric, with the closeness of ``fidelity``.

        Args:
            kept: What was kept of each batch, by its index; of all batches.
            fidelity: Accuracy of the same outputs against the float model.

        Raises:
            ConfigError: When the metric fails.
        """
        return dataclasses.replace(
            fidelity,
            metric=self._metric.name,
            accuracy=self._metric(self._in_order(kept), self._labels),
            reference=self._reference,
            larger_is_better=self._metric.larger_is_better,
            fidelity="",
        )

    def interval(self, kept: Mapping[int, Kept]) -> Interval | None:
        """Return the 95% interval of the drop, paired by sample; None where unknown."""
        return of_metric(
            self._metric, self._in_order(kept), self._expected, self._labels, _INTERVAL_S
        )

    def _in_order(self, kept: Mapping[int, Kept]) -> list[Kept]:
        return [kept[at] for at in range(len(self._of_batches))]
