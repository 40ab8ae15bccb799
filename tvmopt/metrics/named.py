"""Metrics of scikit-learn by name, on the outputs of a network.

Scores become classes where labels have an axis less than an output: the last axis that fits is the
one of classes, so (rows, classes) with labels (rows,), and (rows, classes, height, width) with
labels (rows, height, width).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tvmopt.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class NamedMetric:
    """A metric of one output.

    Attributes:
        keep: What is kept of a batch's output, ``(output, labels) -> array``.
        score: ``(kept, labels) -> float``.
        larger_is_better: Whether a larger number is better.
    """

    keep: Callable[[np.ndarray, np.ndarray], np.ndarray]
    score: Callable[[np.ndarray, np.ndarray], float]
    larger_is_better: bool = True


def _classes(output: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the class of each label: the output's own, its largest score, or its side of 0.5."""
    if output.size == labels.size:
        same = output.reshape(labels.shape)
        if same.dtype.kind != "f":
            return same
        # A probability, or a logit where there are others than probabilities.
        is_probability = bool(((same >= 0) & (same <= 1)).all())
        return (same > (0.5 if is_probability else 0.0)).astype(np.int64)
    return output.argmax(_class_axis(output, labels))


def _scores(output: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return scores with the classes on the last axis, a row for each label."""
    if output.size == labels.size:
        return output.reshape(-1)
    axis = _class_axis(output, labels)
    return np.moveaxis(output, axis, -1).reshape(-1, output.shape[axis])


def _values(output: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the output in the shape of the labels."""
    if output.size != labels.size:
        raise ConfigError(
            f"labels must have a value for each of the output, but the output is {output.shape} "
            f"and the labels are {labels.shape}"
        )
    return output.reshape(labels.shape)


def _class_axis(output: np.ndarray, labels: np.ndarray) -> int:
    for axis in reversed(range(1, output.ndim)):
        if output.shape[:axis] + output.shape[axis + 1 :] == labels.shape:
            return axis
    raise ConfigError(
        "labels must have the shape of the output without its axis of classes, but the output is "
        f"{output.shape} and the labels are {labels.shape}"
    )


def _flat(function: str, **options: Any) -> Callable[[np.ndarray, np.ndarray], float]:
    """Return a function of scikit-learn's on flat labels."""

    def score(kept: np.ndarray, labels: np.ndarray) -> float:
        from sklearn import metrics

        return float(getattr(metrics, function)(labels.reshape(-1), kept.reshape(-1), **options))

    return score


def _of_rows(function: str) -> Callable[[np.ndarray, np.ndarray], float]:
    """Return a function of scikit-learn's on values, a row a sample."""

    def score(kept: np.ndarray, labels: np.ndarray) -> float:
        from sklearn import metrics

        rows = len(labels)
        return float(getattr(metrics, function)(labels.reshape(rows, -1), kept.reshape(rows, -1)))

    return score


def _roc_auc(kept: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    flat = labels.reshape(-1)
    if kept.ndim == 1:
        return float(roc_auc_score(flat, kept))
    if kept.shape[1] == 2:
        return float(roc_auc_score(flat, kept[:, 1].astype(np.float64) - kept[:, 0]))
    # The areas of one class against the rest depend on the order of rows alone, and that on how
    # scores are normalised: as probabilities.
    shifted = kept.astype(np.float64)
    if (shifted < 0).any() or not np.allclose(shifted.sum(1), 1, atol=1e-3):
        shifted = np.exp(shifted - shifted.max(1, keepdims=True))
    chances = shifted / shifted.sum(1, keepdims=True)
    options = {"multi_class": "ovr", "labels": np.arange(kept.shape[1])}
    return float(roc_auc_score(flat, chances, **options))


def _top(count: int, kept: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import top_k_accuracy_score

    if kept.ndim != 2 or kept.shape[1] <= count:
        raise ConfigError(f"top{count} needs an output of more than {count} classes")
    classes = np.arange(kept.shape[1])
    return float(top_k_accuracy_score(labels.reshape(-1), kept, k=count, labels=classes))


_MACRO = {"average": "macro", "zero_division": 0.0}
#: Metrics by the name that ``metric`` takes.
NAMED: dict[str, NamedMetric] = {
    "accuracy": NamedMetric(_classes, _flat("accuracy_score")),
    "balanced_accuracy": NamedMetric(_classes, _flat("balanced_accuracy_score")),
    "f1": NamedMetric(_classes, _flat("f1_score", **_MACRO)),
    "precision": NamedMetric(_classes, _flat("precision_score", **_MACRO)),
    "recall": NamedMetric(_classes, _flat("recall_score", **_MACRO)),
    "mean_iou": NamedMetric(_classes, _flat("jaccard_score", **_MACRO)),
    "roc_auc": NamedMetric(_scores, _roc_auc),
    "top2": NamedMetric(_scores, partial(_top, 2)),
    "top3": NamedMetric(_scores, partial(_top, 3)),
    "top5": NamedMetric(_scores, partial(_top, 5)),
    "top10": NamedMetric(_scores, partial(_top, 10)),
    "r2": NamedMetric(_values, _of_rows("r2_score")),
    "mean_absolute_error": NamedMetric(_values, _of_rows("mean_absolute_error"), False),
    "mean_squared_error": NamedMetric(_values, _of_rows("mean_squared_error"), False),
}
