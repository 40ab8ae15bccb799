"""The metric that a stage measures by, and whether the data has labels for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from tvmopt.errors import ConfigError
from tvmopt.evaluate.dataset import Dataset, read_labels, require_class_indices
from tvmopt.frontend.shapes import graph_inputs
from tvmopt.metrics.check import BUILT_IN, ERROR_RATES, FIDELITIES
from tvmopt.metrics.error_rates import require_jiwer
from tvmopt.metrics.metric import Metric, find_metric
from tvmopt.parameters.groups import MetricParameters
from tvmopt.runtime.metadata import TensorSpec


def asked_metric(
    asked: MetricParameters, outputs: Sequence[TensorSpec], dataset: Dataset
) -> Metric | str:
    """Return the metric; a built-in one by its name.

    Args:
        asked: The parameters of the metric.
        outputs: Outputs of the model.
        dataset: The data.

    Raises:
        ConfigError: When there is no such metric, or the labels are none for it.
    """
    found = metric_of(asked, [spec.name for spec in outputs])
    if isinstance(found, str) and found not in FIDELITIES:
        require_class_indices(dataset.labels, 1 + dataset.stacked)
    return found


def metric_of(asked: MetricParameters, outputs: Sequence[str]) -> Metric | str:
    """Return the metric for a model with these outputs; a built-in one by its name.

    Raises:
        ConfigError: When there is no such metric.
    """
    found = find_metric(
        asked.metric, asked.metric_goal, outputs, asked.metric_alphabet, asked.metric_blank
    )
    return found or asked.metric


def check_labels(text: str, model: onnx.ModelProto, data: Path | None) -> None:
    """Refuse data without labels that the metric takes, before anything is run.

    Args:
        text: The parameter ``metric``.
        model: The model; an array of a file is its input or labels.
        data: The user's data, or None.

    Raises:
        ConfigError: When the metric needs labels, and there are none, or none of its kind.
    """
    if text in FIDELITIES:
        return
    names = [value.name for value in graph_inputs(model)]
    labels = None if data is None else read_labels(data, names)
    if text in BUILT_IN:
        require_class_indices(labels, 2)
    if text.partition("@")[0] in ERROR_RATES:
        require_jiwer(text)
    if labels is None and text != "auto":
        raise ConfigError(
            f"metric {text!r} needs labels, but {'the data holds none' if data else 'no data'}; "
            "add an array 'labels', or use metric=fidelity"
        )
