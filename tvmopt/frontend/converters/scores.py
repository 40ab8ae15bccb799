"""Scores of classes in ai.onnx.ml: the winning class, its label, and the post-transforms.

NaN loses every comparison, as in ONNX Runtime; only a NaN in front stays in front.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from tvmopt.frontend.converters.node import Attributes, dtype_of, static_shape, text, typed_constant

_LOWEST = float(np.finfo("float32").min)
# ONNX Runtime takes scores within it for 0 in SOFTMAX_ZERO.
_NEARLY_ZERO = 1e-7
# Constant of the approximation of the inverse error function by Winitzki.
_ERF_INVERSE = 0.147


def matrix(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """Return the input of a model of rows as float32 (rows, features); one axis is one row.

    Raises:
        ValueError: When it has more than two axes.
    """
    shape = static_shape(x)
    if len(shape) not in (1, 2):
        raise ValueError(f"inputs must have one or two axes, but have {len(shape)}")
    if len(shape) == 1:
        x = builder.emit(relax.op.reshape(x, [1, shape[0]]))
    return x if dtype_of(x) == "float32" else builder.emit(relax.op.astype(x, "float32"))


def first_of_largest(builder: relax.BlockBuilder, scores: relax.Expr) -> relax.Expr:
    """Return the place of the first of the largest scores of each row, int64 (rows,)."""
    columns = static_shape(scores)[1]
    clean = _without_nan(builder, scores)
    largest = builder.emit(relax.op.max(clean, [1], keepdims=True))
    places = typed_constant(np.arange(columns)[None], "int64")
    none = typed_constant(columns, "int64")
    found = relax.op.where(relax.op.equal(clean, largest), places, none)
    first = builder.emit(relax.op.min(builder.emit(found), [1]))
    # No score equals the largest one where all are -inf: a reduction starts at the lowest number.
    missing = relax.op.equal(first, none)
    return builder.emit(relax.op.where(missing, typed_constant(0, "int64"), first))


def _without_nan(builder: relax.BlockBuilder, scores: relax.Expr) -> relax.Expr:
    """Replace NaN: by -inf, and by inf in the first column."""
    columns, dtype = static_shape(scores)[1], dtype_of(scores)
    infinity = np.full((1, columns), -np.inf, dtype)
    infinity[0, 0] = np.inf
    is_nan = builder.emit(relax.op.isnan(scores))
    return builder.emit(relax.op.where(is_nan, typed_constant(infinity), scores))


def chosen_label(builder: relax.BlockBuilder, place: relax.Expr, labels: list[int]) -> relax.Expr:
    """Return the label at ``place`` (rows,), int64."""
    if labels == list(range(len(labels))):
        return place
    return builder.emit(relax.op.take(typed_constant(labels, "int64"), place, 0, "clip"))


def class_labels(attributes: Attributes) -> list[int]:
    """Return the integer labels of a classifier.

    Raises:
        ValueError: When they are strings.
    """
    if attributes.get("classlabels_strings"):
        raise ValueError("labels must be integers, but are strings")
    return [int(label) for label in attributes.get("classlabels_ints") or ()]


def transform_name(attributes: Attributes) -> str:
    """Return the name of the post-transform."""
    return text(attributes, "post_transform", "NONE")


def post_transform(builder: relax.BlockBuilder, scores: relax.Expr, name: str) -> relax.Expr:
    """Return the transformed scores of rows with several classes.

    Args:
        builder: Block builder to emit into.
        scores: float32 (rows, classes).
        name: Name of the transform in ONNX.

    Raises:
        ValueError: When there is no such transform.
    """
    if name == "NONE":
        return scores
    if name == "LOGISTIC":
        return builder.emit(relax.op.sigmoid(scores))
    if name == "SOFTMAX":
        return builder.emit(relax.op.nn.softmax(scores, axis=1))
    if name == "SOFTMAX_ZERO":
        return _softmax_zero(builder, scores)
    if name == "PROBIT":
        return probit(builder, scores)
    raise ValueError(f"post_transform {name} is not supported")


def two_classes(builder: relax.BlockBuilder, low: relax.Expr, high: relax.Expr) -> relax.Expr:
    """Return two columns of scores (rows, 1) side by side."""
    return builder.emit(relax.op.concat([builder.emit(low), builder.emit(high)], 1))


def complement(builder: relax.BlockBuilder, score: relax.Expr, name: str) -> relax.Expr:
    """Return the scores of two classes (rows, 2) from that of the second one (rows, 1).

    They are ``1 - score`` and ``score``; LOGISTIC is the only post-transform that ONNX Runtime
    applies here.
    """
    if name == "LOGISTIC":
        low = relax.op.sigmoid(relax.op.negative(score))
        return two_classes(builder, low, relax.op.sigmoid(score))
    return two_classes(builder, relax.op.subtract(relax.const(1.0), score), score)


def _softmax_zero(builder: relax.BlockBuilder, scores: relax.Expr) -> relax.Expr:
    """Return the softmax of the scores that are not 0; a 0 stays near 0."""
    is_nan = builder.emit(relax.op.isnan(scores))
    clean = builder.emit(relax.op.where(is_nan, relax.const(_LOWEST, "float32"), scores))
    largest = relax.op.maximum(
        relax.op.max(clean, [1], keepdims=True), relax.const(_LOWEST, "float32")
    )
    largest = builder.emit(largest)
    # A NaN counts as a 0: it passes neither bound.
    counts = builder.emit(
        relax.op.greater(relax.op.abs(scores), relax.const(_NEARLY_ZERO, "float32"))
    )
    power = builder.emit(relax.op.exp(relax.op.subtract(scores, largest)))
    total = relax.op.sum(relax.op.where(counts, power, relax.const(0.0)), [1], keepdims=True)
    zero = relax.op.multiply(scores, relax.op.exp(relax.op.negative(largest)))
    kept = builder.emit(relax.op.where(counts, power, zero))
    return builder.emit(relax.op.divide(kept, builder.emit(total)))


def probit(builder: relax.BlockBuilder, scores: relax.Expr) -> relax.Expr:
    """Return ``sqrt(2) * erfinv(2 * score - 1)``, as ONNX Runtime approximates it."""
    one = relax.const(1.0)
    x = builder.emit(relax.op.subtract(relax.op.multiply(relax.const(2.0), scores), one))
    sign = relax.op.where(relax.op.less(x, relax.const(0.0)), relax.const(-1.0), one)
    product = relax.op.multiply(relax.op.subtract(one, x), relax.op.add(one, x))
    log = builder.emit(relax.op.log(product))
    half = relax.op.multiply(relax.const(0.5), log)
    first = builder.emit(relax.op.add(relax.const(2 / (3.14159 * _ERF_INVERSE)), half))
    second = relax.op.multiply(relax.const(1 / _ERF_INVERSE), log)
    root = relax.op.sqrt(relax.op.subtract(relax.op.multiply(first, first), second))
    size = relax.op.sqrt(relax.op.subtract(root, first))
    found = relax.op.multiply(builder.emit(sign), builder.emit(size))
    return builder.emit(relax.op.multiply(relax.const(math.sqrt(2)), found))
