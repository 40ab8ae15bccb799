"""Converters of LinearClassifier and LinearRegressor of ai.onnx.ml."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.frontend.converters.node import Attributes, Inputs, static_shape
from tvmopt.frontend.converters.scores import (
    chosen_label,
    class_labels,
    complement,
    first_of_largest,
    matrix,
    post_transform,
    transform_name,
)


def linear_classifier(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return the labels, int64 (rows,), and the scores, float32 (rows, classes).

    The second of two classes with a single score wins when the score is positive.
    """
    labels, name = class_labels(attributes), transform_name(attributes)
    scores = _affine(builder, inputs, attributes, len(attributes.get("intercepts") or ()))
    if static_shape(scores)[1] > 1:
        place = first_of_largest(builder, scores)
        found = chosen_label(builder, place, labels)
        return relax.Tuple([found, post_transform(builder, scores, name)])
    if len(labels) != 2 or name == "PROBIT":
        raise ValueError("one score needs two labels, and another post_transform than PROBIT")
    wins = relax.op.greater(relax.op.reshape(scores, [-1]), relax.const(0.0, "float32"))
    second = builder.emit(relax.op.astype(wins, "int64"))
    found = chosen_label(builder, second, labels)
    return relax.Tuple([found, complement(builder, scores, name)])


def linear_regressor(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return the predictions, float32 (rows, targets).

    ONNX Runtime applies no post-transform but PROBIT to a single target.
    """
    targets, name = int(attributes.get("targets", 1)), transform_name(attributes)
    scores = _affine(builder, inputs, attributes, targets)
    if targets > 1 or name == "PROBIT":
        return builder.normalize(post_transform(builder, scores, name))
    return scores


def _affine(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, columns: int
) -> relax.Expr:
    """Return ``x @ coefficients.T + intercepts``."""
    x = matrix(builder, inputs[0])
    features = static_shape(x)[1]
    weights = np.array(attributes["coefficients"], "float32")
    if columns < 1 or weights.size != columns * features:
        raise ValueError(f"coefficients must be {columns}x{features}, but there are {weights.size}")
    transposed = np.ascontiguousarray(weights.reshape(columns, features).T)
    y = builder.emit(relax.op.matmul(x, relax.const(transposed)))
    intercepts = np.array(attributes.get("intercepts") or (), "float32")
    if intercepts.size != columns:
        return y
    return builder.emit(relax.op.add(y, relax.const(intercepts)))
