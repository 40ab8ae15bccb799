"""Outputs and answers that XGBoost and LightGBM have in common."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvmopt.errors import ConfigError
from tvmopt.exporters.exported import (
    LABEL_OUTPUT,
    PROBABILITIES_OUTPUT,
    VALUES_OUTPUT,
    Exported,
    Predict,
)
from tvmopt.exporters.outputs import WantedOutput, with_outputs
from tvmopt.exporters.source import SourceModel
from tvmopt.runtime.interface import LABELS, PROBABILITIES, VALUES, SourceColumn

#: ONNX input: a matrix of all columns.
INPUT = "columns"


def matrix_columns(source: SourceModel) -> tuple[tuple[SourceColumn, ...], str, int]:
    """Return the columns of a source that takes one matrix, the input's name and its width.

    Raises:
        ConfigError: When a column holds texts, or the signature is no matrix.
    """
    texts = [column.name for column in source.columns if column.is_text]
    if texts:
        raise ConfigError(
            f"columns of a {source.flavor} model must hold numbers, but {texts[0]!r} holds texts; "
            "encode them before the model"
        )
    if source.columns:
        found = tuple(SourceColumn(c.name, INPUT, at) for at, c in enumerate(source.columns))
        return found, INPUT, len(found)
    shapes = [tensor.shape for tensor in source.tensors]
    if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][1] < 1:
        raise ConfigError(
            f"the signature of model {source.uri!r} must have columns, or one tensor of shape "
            f"(-1, columns), but has {shapes}"
        )
    return (), source.tensors[0].name, shapes[0][1]


def classifier(
    graph: onnx.ModelProto,
    columns: tuple[SourceColumn, ...],
    classes: tuple[str | float | bool, ...],
    predict: Predict,
    shares: Predict | None,
) -> Exported:
    """Return the export of a classifier whose graph gives labels and probabilities.

    Args:
        graph: The graph; its first output are labels, its second probabilities.
        columns: Columns of the table.
        classes: Class of each label.
        predict: ``predict`` of the source.
        shares: ``predict_proba`` of the source, whose ``predict`` gives labels; None where
            ``predict`` itself gives probabilities.
    """
    label, probabilities = (output.name for output in graph.graph.output)
    wanted = [
        WantedOutput(probabilities, PROBABILITIES_OUTPUT, "float32", len(classes)),
        WantedOutput(label, LABEL_OUTPUT, "int64"),
    ]
    if shares is not None:
        with_outputs(graph, wanted)
        named = {PROBABILITIES_OUTPUT: shares}
        return Exported(graph, columns, LABELS, LABEL_OUTPUT, classes, predict, named)
    if len(classes) > 2:
        with_outputs(graph, wanted)
        return Exported(graph, columns, PROBABILITIES, PROBABILITIES_OUTPUT, None, predict)
    place = "positive place"
    graph.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), place))
    graph.graph.node.append(
        helper.make_node("Gather", [probabilities, place], ["positive"], "positive", axis=1)
    )
    with_outputs(graph, [*wanted, WantedOutput("positive", VALUES_OUTPUT, "float32", 1)])
    return Exported(graph, columns, PROBABILITIES, VALUES_OUTPUT, None, predict)


def regressor(
    graph: onnx.ModelProto, columns: tuple[SourceColumn, ...], predict: Predict
) -> Exported:
    """Return the export of a regressor, whose graph gives values of shape (rows, targets)."""
    values = graph.graph.output[0]
    dims = values.type.tensor_type.shape.dim
    width = dims[1].dim_value or 1 if len(dims) > 1 else 1
    with_outputs(graph, [WantedOutput(values.name, VALUES_OUTPUT, "float32", width)])
    return Exported(graph, columns, VALUES, VALUES_OUTPUT, None, predict)
