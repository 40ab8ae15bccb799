"""Converters of SVMClassifier and SVMRegressor of ai.onnx.ml.

Each pair of classes (i, j) with i < j has a score: the kernel's values at the support vectors of
both classes, weighted by the pair's coefficients. The class that wins most pairs is the label. With
``prob_a`` and ``prob_b``, a sigmoid turns each score into the probability of i against j, and these
are coupled to the probabilities of all classes (:mod:`tvmopt.kernels.class_probabilities`).
"""

from __future__ import annotations

import itertools

import numpy as np
from tvm import relax

from tvmopt.frontend.converters.node import Attributes, Inputs, static_shape, text, typed_constant
from tvmopt.frontend.converters.scores import (
    chosen_label,
    class_labels,
    complement,
    first_of_largest,
    matrix,
    post_transform,
    transform_name,
    two_classes,
)
from tvmopt.kernels.class_probabilities import MOST_CLASSES, class_probabilities

_MOST_FACTORS = 8  # largest degree of a polynomial that is a product


def svm_classifier(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return the labels, int64 (rows,), and scores or probabilities, float32 (rows, columns)."""
    x, labels, name = (
        matrix(builder, inputs[0]),
        class_labels(attributes),
        transform_name(attributes),
    )
    counts = [int(count) for count in attributes.get("vectors_per_class") or ()]
    if not sum(counts):
        return _linear(builder, x, attributes, labels, name)
    if len(counts) != len(labels) or len(labels) < 2:
        raise ValueError("every class must have its number of support vectors, of two or more")
    scores = _pair_scores(builder, x, attributes, counts)
    place = first_of_largest(builder, _votes(builder, scores, len(labels)))
    found = chosen_label(builder, place, labels)
    if attributes.get("prob_a"):
        values = _probabilities(builder, scores, attributes, len(labels))
        return relax.Tuple([found, post_transform(builder, values, name)])
    if len(labels) > 2:
        return relax.Tuple([found, post_transform(builder, scores, name)])
    if name == "PROBIT":
        raise ValueError("PROBIT of one score for two classes leaves the second undefined")
    if name == "NONE":
        return relax.Tuple([found, two_classes(builder, relax.op.negative(scores), scores)])
    return relax.Tuple([found, complement(builder, scores, name)])


def svm_regressor(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return the predictions, float32 (rows, 1); a one-class model gives 1 and -1."""
    x = matrix(builder, inputs[0])
    rho = np.array(attributes["rho"][:1], "float32")
    weights = np.array(attributes["coefficients"], "float32")[:, None]
    if int(attributes.get("n_supports", 0)) > 0:
        values = _kernel(builder, x, attributes, int(attributes["n_supports"]))
    else:
        values = x
    if static_shape(values)[1] != len(weights):
        raise ValueError(f"there must be {static_shape(values)[1]} coefficients")
    y = builder.emit(relax.op.matmul(values, relax.const(weights)))
    y = builder.emit(relax.op.add(y, relax.const(rho)))
    if not int(attributes.get("one_class", 0)):
        return y
    inside = relax.op.greater(y, relax.const(0.0))
    return builder.normalize(relax.op.where(inside, relax.const(1.0), relax.const(-1.0)))


def _linear(
    builder: relax.BlockBuilder, x: relax.Expr, attributes: Attributes, labels: list[int], name: str
) -> relax.Expr:
    """Return the outputs of a classifier without support vectors: one score a class."""
    weights = np.array(attributes["coefficients"], "float32")
    features = static_shape(x)[1]
    if not labels or weights.size != len(labels) * features:
        raise ValueError(f"coefficients must be {len(labels)}x{features}")
    columns = np.ascontiguousarray(weights.reshape(len(labels), features).T)
    scores = builder.emit(relax.op.matmul(x, relax.const(columns)))
    rho = relax.const(np.array(attributes["rho"][:1], "float32"))
    scores = builder.emit(relax.op.add(scores, rho))
    place = first_of_largest(builder, scores)
    if len(labels) == 2 and not attributes.get("prob_a"):
        place = _second_of_two(builder, scores, place, bool((weights >= 0).all()))
    found = chosen_label(builder, place, labels)
    if len(labels) > 1 or name == "PROBIT":
        scores = post_transform(builder, scores, name)
    return relax.Tuple([found, scores])


def _second_of_two(
    builder: relax.BlockBuilder, scores: relax.Expr, place: relax.Expr, is_positive: bool
) -> relax.Expr:
    """Return 1 where the largest of two scores passes a threshold: 0.5 with positive weights."""
    first, second = (
        builder.emit(relax.op.strided_slice(scores, [1], [at], [at + 1])) for at in (0, 1)
    )
    larger = builder.emit(relax.op.where(relax.op.greater(second, first), second, first))
    flat = relax.op.reshape(larger, [-1])
    if is_positive:
        passes = relax.op.greater_equal(flat, relax.const(0.5))
    else:
        passes = relax.op.greater(flat, relax.const(0.0))
    return builder.emit(relax.op.where(passes, typed_constant(1, "int64"), place))


def _kernel(
    builder: relax.BlockBuilder, x: relax.Expr, attributes: Attributes, count: int
) -> relax.Expr:
    """Return the kernel's value at each support vector, float32 (rows, vectors)."""
    rows, features = static_shape(x)
    vectors = np.array(attributes.get("support_vectors") or (), "float32")
    if vectors.size != count * features:
        raise ValueError(f"support_vectors must be {count}x{features}")
    vectors = vectors.reshape(count, features)
    kind = text(attributes, "kernel_type", "LINEAR")
    given = [float(value) for value in attributes.get("kernel_params") or (0, 0, 0)]
    gamma, shift, degree = (relax.const(np.float32(value)) for value in given[:3])
    if kind == "RBF":
        # The difference first: the squares of large features would lose all digits of it.
        wide = relax.op.reshape(x, [rows, 1, features])
        difference = builder.emit(relax.op.subtract(wide, relax.const(vectors[None])))
        square = relax.op.sum(relax.op.multiply(difference, difference), [2])
        return builder.emit(relax.op.exp(relax.op.multiply(relax.op.negative(gamma), square)))
    product = builder.emit(relax.op.matmul(x, relax.const(np.ascontiguousarray(vectors.T))))
    if kind == "LINEAR":
        return product
    shifted = builder.emit(relax.op.add(relax.op.multiply(gamma, product), shift))
    if kind == "SIGMOID":
        return builder.emit(relax.op.tanh(shifted))
    if kind != "POLY":
        raise ValueError(f"kernel_type {kind} is not supported")
    if given[2] not in range(1, _MOST_FACTORS + 1):
        return builder.emit(relax.op.power(shifted, degree))
    power = shifted
    for _ in range(int(given[2]) - 1):
        power = builder.emit(relax.op.multiply(power, shifted))
    return power


def _pair_scores(
    builder: relax.BlockBuilder, x: relax.Expr, attributes: Attributes, counts: list[int]
) -> relax.Expr:
    """Return the score of each pair of classes, float32 (rows, pairs).

    One batched matmul: each class has a separate matrix, so that an infinity at the vectors of
    one class does not meet the zeros of another one. In double as in ONNX Runtime, because the
    terms of both classes cancel, and a sigmoid may be steep.
    """
    classes, total, rows = len(counts), sum(counts), static_shape(x)[0]
    given = np.array(attributes["coefficients"], "float32")[: (classes - 1) * total]
    given = given.reshape(classes - 1, total)
    weights = np.zeros((classes, max(counts), classes - 1))
    places = np.full((classes, max(counts)), total)  # of a column of zeros
    for number, (count, stop) in enumerate(zip(counts, np.cumsum(counts), strict=True)):
        own = np.arange(stop - count, stop)
        places[number, :count] = own
        weights[number, :count] = given[:, own].T
    values = builder.emit(relax.op.astype(_kernel(builder, x, attributes, total), "float64"))
    padded = builder.emit(relax.op.concat([values, typed_constant(np.zeros((rows, 1)))], 1))
    flat = relax.op.take(padded, typed_constant(places.reshape(-1), "int64"), 1)
    apart = relax.op.reshape(builder.emit(flat), [rows, classes, max(counts)])
    by_class = builder.emit(relax.op.permute_dims(builder.emit(apart), [1, 0, 2]))
    terms = builder.emit(relax.op.matmul(by_class, typed_constant(weights)))
    terms = builder.emit(relax.op.permute_dims(terms, [1, 0, 2]))
    terms = builder.emit(relax.op.reshape(terms, [rows, classes * (classes - 1)]))
    pairs = list(itertools.combinations(range(classes), 2))
    # Class i has its opponents in order, without itself.
    firsts = [i * (classes - 1) + j - 1 for i, j in pairs]
    seconds = [j * (classes - 1) + i for i, j in pairs]
    first, second = (
        builder.emit(relax.op.take(terms, typed_constant(side, "int64"), 1))
        for side in (firsts, seconds)
    )
    rho = typed_constant(attributes["rho"][: len(pairs)], "float64")
    scores = relax.op.add(builder.emit(relax.op.add(first, second)), rho)
    return builder.emit(relax.op.astype(builder.emit(scores), "float32"))


def _votes(builder: relax.BlockBuilder, scores: relax.Expr, classes: int) -> relax.Expr:
    """Return the number of pairs that each class wins, float32 (rows, classes)."""
    pairs = list(itertools.combinations(range(classes), 2))
    change = np.zeros((len(pairs), classes), "float32")
    start = np.zeros((1, classes), "float32")
    for number, (i, j) in enumerate(pairs):
        change[number, [i, j]] = 1, -1
        start[0, j] += 1
    wins = builder.emit(relax.op.astype(relax.op.greater(scores, relax.const(0.0)), "float32"))
    return builder.emit(
        relax.op.add(relax.op.matmul(wins, relax.const(change)), relax.const(start))
    )


def _probabilities(
    builder: relax.BlockBuilder, scores: relax.Expr, attributes: Attributes, classes: int
) -> relax.Expr:
    """Return the probability of each class, float32 (rows, classes)."""
    rows, pairs = static_shape(scores)
    if classes > MOST_CLASSES:
        raise ValueError(f"probabilities must be of at most {MOST_CLASSES} classes")
    first, second = (
        relax.const(np.array(attributes[name][:pairs], "float32")) for name in ("prob_a", "prob_b")
    )
    function = class_probabilities(rows, classes)
    symbol = builder.add_func(function, "class_probabilities")
    kind = relax.TensorType((rows, classes), "float32")
    return builder.emit(relax.op.call_tir(symbol, [scores, first, second], kind))
