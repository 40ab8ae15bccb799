"""Linear models and support vector machines of ai.onnx.ml as layers: they are matmuls."""

from __future__ import annotations

import onnx

from tvmopt.frontend.categories.attributes import attributes_of

#: Operators that multiply their input with a matrix that is an attribute.
ML_ANCHORS = ("LinearClassifier", "LinearRegressor", "SVMClassifier", "SVMRegressor")
_COEFFICIENT_BYTES = 4


def ml_weight(node: onnx.NodeProto, features: int) -> list[int]:
    """Return the shape of the matrix that a linear model or an SVM multiplies the input with.

    Args:
        node: A node of one of ``ML_ANCHORS``.
        features: Extent of the last axis of its input.

    Returns:
        (scores, features), or (support vectors, features) of an SVM with a kernel.
    """
    given = attributes_of(node)
    values = given.get("support_vectors") or given.get("coefficients") or ()
    return [len(values) // max(1, features), features]


def ml_flops(node: onnx.NodeProto, rows: int) -> int:
    """Return the FLOPs of one run; the FLOPs of a kernel function are left out."""
    given = attributes_of(node)
    products = len(given.get("coefficients") or ())
    products += len(given.get("support_vectors") or ())
    return 2 * rows * products


def ml_bytes(node: onnx.NodeProto) -> int:
    """Return the bytes of the matrices of a node."""
    given = attributes_of(node)
    names = ("coefficients", "support_vectors")
    return sum(_COEFFICIENT_BYTES * len(given.get(name) or ()) for name in names)
