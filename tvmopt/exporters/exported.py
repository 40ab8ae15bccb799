"""Result of an exporter: the ONNX model, its interface, and the source's own predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from tvmopt.runtime.interface import SourceColumn

#: Name of the dimension that counts rows.
ROWS = "rows"
#: ONNX outputs of classifiers, of regressors, and of other models.
PROBABILITIES_OUTPUT, LABEL_OUTPUT = "probabilities", "label"
SCORES_OUTPUT, VALUES_OUTPUT = "scores", "values"

Predict = Callable[[Any], np.ndarray]
"""Takes a pandas table, or an array for a model of tensors."""


@dataclasses.dataclass(frozen=True)
class Exported:
    """A source model as ONNX.

    Attributes:
        model: The ONNX model; the first axis of its inputs and outputs is called ``rows``. Columns
            of texts are inputs of strings.
        columns: Columns of the table, and where they are in the inputs; empty for tensors.
        answer: What ``predict`` returns, see :data:`tvmopt.runtime.interface.ANSWERS`.
        output: ONNX output that holds the answer.
        classes: Class of each label; None if there are none, or the output holds them itself.
        predict: ``predict`` of the source, as MLflow's generic flavor calls it.
        references: Other predictions of the source, by ONNX output.
        categories: Categories that an encoder of a column knows, by column.
    """

    model: onnx.ModelProto
    columns: tuple[SourceColumn, ...]
    answer: str
    output: str
    classes: tuple[str | float | bool, ...] | None
    predict: Predict
    references: Mapping[str, Predict] = dataclasses.field(default_factory=dict)
    categories: Mapping[str, tuple[str | float, ...]] = dataclasses.field(default_factory=dict)
