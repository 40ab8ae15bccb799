"""Converters for skl2onnx of support vector machines: matmuls in float64.

ONNX's SVMClassifier and SVMRegressor compute in float32, element by element. With many support
vectors that decides other labels than scikit-learn, which computes in float64, and it is slow. Here
the squared distances of a row x to the support vectors v are |x|^2 - 2 x v + |v|^2, of values
centred about the mean of the vectors, so that no digits are lost.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tvmopt.exporters.sklearn_nodes import CLASSIFIER_OPTIONS, Nodes

_KERNELS = ("rbf", "linear", "poly", "sigmoid")


def register_svm() -> None:
    """Make skl2onnx use the converters of this file."""
    from skl2onnx import update_registered_converter
    from skl2onnx.shape_calculators.support_vector_machines import (
        calculate_sklearn_svm_output_shapes,
    )
    from sklearn import svm

    for kind, alias, convert in (
        (svm.SVC, "SVC", _convert_classifier),
        (svm.NuSVC, "SVC", _convert_classifier),
        (svm.SVR, "SVR", _convert_regressor),
        (svm.NuSVR, "SVR", _convert_regressor),
        (svm.OneClassSVM, "OneClassSVM", _convert_regressor),
    ):
        # The names of skl2onnx: its parsers and shape calculators ask for them.
        update_registered_converter(
            kind,
            f"Sklearn{alias}",
            calculate_sklearn_svm_output_shapes,
            convert,
            options=CLASSIFIER_OPTIONS if alias == "SVC" else None,
            overwrite=True,
        )


def _convert_classifier(scope: Any, operator: Any, container: Any) -> None:
    """Write the class that wins most pairs, as libsvm does, and the score of each pair."""
    from skl2onnx.operator_converters.support_vector_machines import (
        convert_sklearn_svm_classifier,
    )

    model = operator.raw_operator
    is_last = getattr(model, "is_last_step", False)
    gives_shares = hasattr(model, "predict_proba")
    if not is_last or gives_shares or model.kernel not in _KERNELS or model.break_ties:
        convert_sklearn_svm_classifier(scope, operator, container)
        return
    nodes = Nodes(scope, container)
    scores = _scores(nodes, operator, _pair_weights(model), np.asarray(model._intercept_))
    wins = nodes.cast(nodes.add("Greater", [scores, nodes.constant(np.float64(0))]), np.float32)
    count = len(model.classes_)
    turns, start = np.zeros((0, count), np.float32), np.zeros(count, np.float32)
    for first, second in itertools.combinations(range(count), 2):
        turn = np.zeros(count, np.float32)
        turn[first], turn[second] = 1, -1  # the second wins where the first does not
        turns = np.concatenate([turns, turn[None]])
        start[second] += 1
    votes = nodes.add("MatMul", [wins, nodes.constant(turns)])
    votes = nodes.add("Add", [votes, nodes.constant(start[None])])
    place = nodes.add("ArgMax", [votes], axis=1, keepdims=0)
    classes = nodes.constant(np.asarray(model.classes_, np.int64))
    nodes.add("Gather", [classes, place], operator.outputs[0].full_name, axis=0)
    nodes.write_fractions(operator, scores, 1)


def _convert_regressor(scope: Any, operator: Any, container: Any) -> None:
    """Write the value of a regressor, or the side and the score of a one-class machine."""
    from skl2onnx.operator_converters.support_vector_machines import (
        convert_sklearn_svm_regressor,
    )

    model = operator.raw_operator
    if model.kernel not in _KERNELS:
        convert_sklearn_svm_regressor(scope, operator, container)
        return
    nodes = Nodes(scope, container)
    scores = _scores(nodes, operator, _dense(model._dual_coef_).T, model._intercept_)
    if len(operator.outputs) == 1:
        nodes.write_fractions(operator, scores)
        return
    inside = nodes.add("Greater", [scores, nodes.constant(np.float64(0))])
    plus, minus = (nodes.constant(np.int64(one)) for one in (1, -1))
    nodes.add("Where", [inside, plus, minus], operator.outputs[0].full_name)
    nodes.write_fractions(operator, scores, 1)


def _scores(nodes: Nodes, operator: Any, weights: np.ndarray, shift: np.ndarray) -> str:
    """Add kernel values times weights; return the scores, float64 (rows, columns of weights)."""
    model = operator.raw_operator
    x = nodes.joined(operator, np.float64)
    vectors = _dense(model.support_vectors_)
    gamma = float(model._gamma)
    if model.kernel == "linear":
        values = nodes.add("MatMul", [x, nodes.constant(vectors.T @ weights)])
    elif model.kernel == "rbf":
        centre = vectors.mean(axis=0, keepdims=True)
        about = vectors - centre
        centred = nodes.add("Sub", [x, nodes.constant(centre)])
        near = nodes.add("MatMul", [centred, nodes.constant(2 * gamma * about.T)])
        own = nodes.add("ReduceSumSquare", [centred], axes=[1], keepdims=1)
        own = nodes.add("Mul", [own, nodes.constant(np.float64(gamma))])
        far = nodes.constant(gamma * np.square(about).sum(axis=1)[None])
        values = nodes.add("Sub", [nodes.add("Sub", [near, far]), own])
        kernel = nodes.add("Exp", [values])
        values = nodes.add("MatMul", [kernel, nodes.constant(weights)])
    else:
        product = nodes.add("MatMul", [x, nodes.constant(gamma * vectors.T)])
        shifted = nodes.add("Add", [product, nodes.constant(np.float64(model.coef0))])
        if model.kernel == "poly":
            degree = nodes.constant(np.float64(model.degree))
            kernel = nodes.add("Pow", [shifted, degree])
        else:
            kernel = nodes.add("Tanh", [shifted])
        values = nodes.add("MatMul", [kernel, nodes.constant(weights)])
    return nodes.add("Add", [values, nodes.constant(np.asarray(shift, np.float64)[None])])


def _pair_weights(model: Any) -> np.ndarray:
    """Return the weight of each support vector in the score of each pair of classes."""
    dual, counts = _dense(model._dual_coef_), np.asarray(model.n_support_)
    ends = np.cumsum(counts)
    starts = ends - counts
    pairs = list(itertools.combinations(range(len(counts)), 2))
    weights = np.zeros((dual.shape[1], len(pairs)))
    for number, (first, second) in enumerate(pairs):
        mine, theirs = slice(starts[first], ends[first]), slice(starts[second], ends[second])
        weights[mine, number] = dual[second - 1, mine]
        weights[theirs, number] = dual[first, theirs]
    return weights


def _dense(values: Any) -> np.ndarray:
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values, np.float64)
