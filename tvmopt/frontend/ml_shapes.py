"""Types and shapes of what operators of ai.onnx.ml give, many of which ONNX does not infer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from tvmopt.frontend.operator_sets import ML_DOMAIN

Attributes = Mapping[str, Any]
#: Type and shape of an output.
Kind = tuple[int, tuple[int, ...]]
_Infer = Callable[[Attributes, Sequence[Kind]], "list[Kind] | None"]


def with_ml_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with the shapes of operators of ai.onnx.ml, and of all that follow from it.

    Args:
        model: A model with static inputs whose other shapes are inferred as far as ONNX can.
    """
    if not any(node.domain == ML_DOMAIN for node in model.graph.node):
        return model
    for _ in range(len(model.graph.node)):
        if not _add_shapes(model.graph):
            break
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return model


def _add_shapes(graph: onnx.GraphProto) -> bool:
    """Add the shapes of nodes whose inputs have one; return whether there was any."""
    known = _known(graph)
    values = {value.name: value for value in (*graph.value_info, *graph.output)}
    changed = False
    for node in graph.node:
        infer = _INFER.get(node.op_type) if node.domain == ML_DOMAIN else None
        missing = any(name and name not in known for name in node.output)
        if infer is None or not missing or not all(name in known for name in node.input):
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        kinds = infer(attributes, [known[name] for name in node.input])
        for name, (dtype, shape) in zip(node.output, kinds or (), strict=False):
            value = values.get(name)
            if value is None:
                value = graph.value_info.add()
                value.name = name
            value.type.CopyFrom(helper.make_tensor_type_proto(dtype, shape))
            known[name] = dtype, shape
            changed = True
    return changed


def _known(graph: onnx.GraphProto) -> dict[str, Kind]:
    """Return type and shape of the values whose shape is static."""
    known: dict[str, Kind] = {t.name: (t.data_type, tuple(t.dims)) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        dims = tensor.shape.dim
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            known[value.name] = tensor.elem_type, tuple(dim.dim_value for dim in dims)
    return known


def _rows(shape: Sequence[int]) -> int:
    """Return the rows of an input; one of a single axis is one row."""
    return shape[0] if len(shape) > 1 else 1


def class_labels(attributes: Attributes) -> tuple[int, int]:
    """Return the type of the labels of a classifier, and their number."""
    if strings := attributes.get("classlabels_strings"):
        return TensorProto.STRING, len(strings)
    return TensorProto.INT64, len(attributes.get("classlabels_ints") or ())


def _linear_classifier(attributes: Attributes, inputs: Sequence[Kind]) -> list[Kind]:
    rows, (dtype, labels) = _rows(inputs[0][1]), class_labels(attributes)
    scores = len(attributes.get("intercepts") or ())
    columns = 2 if scores == 1 and labels == 2 else scores
    return [(dtype, (rows,)), (TensorProto.FLOAT, (rows, columns))]


def _svm_classifier(attributes: Attributes, inputs: Sequence[Kind]) -> list[Kind]:
    rows, (dtype, labels) = _rows(inputs[0][1]), class_labels(attributes)
    columns = labels
    if sum(attributes.get("vectors_per_class") or ()) and not attributes.get("prob_a"):
        columns = labels * (labels - 1) // 2 if labels > 2 else 2
    return [(dtype, (rows,)), (TensorProto.FLOAT, (rows, columns))]


def _linear_regressor(attributes: Attributes, inputs: Sequence[Kind]) -> list[Kind]:
    return [(TensorProto.FLOAT, (_rows(inputs[0][1]), int(attributes.get("targets", 1))))]


def _svm_regressor(attributes: Attributes, inputs: Sequence[Kind]) -> list[Kind]:
    return [(TensorProto.FLOAT, (_rows(inputs[0][1]), 1))]


def _same(attributes: Attributes, inputs: Sequence[Kind]) -> list[Kind]:
    return [inputs[0]]


def _same_shape(attributes: Attributes, inputs: Sequence[Kind]) -> list[Kind]:
    return [(TensorProto.FLOAT, inputs[0][1])]


def _one_hot(attributes: Attributes, inputs: Sequence[Kind]) -> list[Kind]:
    categories = attributes.get("cats_int64s") or attributes.get("cats_strings") or ()
    return [(TensorProto.FLOAT, (*inputs[0][1], len(categories)))]


def _label_encoder(attributes: Attributes, inputs: Sequence[Kind]) -> list[Kind] | None:
    if "values_tensor" in attributes:
        return [(attributes["values_tensor"].data_type, inputs[0][1])]
    for name, dtype in _VALUES.items():
        if name in attributes:
            return [(dtype, inputs[0][1])]
    return None


_VALUES = {
    "values_int64s": TensorProto.INT64,
    "values_floats": TensorProto.FLOAT,
    "values_strings": TensorProto.STRING,
}


def _feature_extractor(attributes: Attributes, inputs: Sequence[Kind]) -> list[Kind] | None:
    (dtype, shape), (_, indices) = inputs
    if not shape:
        return None
    return [(dtype, (*(shape[:-1] or (1,)), math.prod(indices)))]


def _feature_vectorizer(attributes: Attributes, inputs: Sequence[Kind]) -> list[Kind]:
    columns = sum(attributes.get("inputdimensions") or ())
    return [(TensorProto.FLOAT, (_rows(inputs[0][1]), columns))]


_INFER: dict[str, _Infer] = {
    "ArrayFeatureExtractor": _feature_extractor,
    "Binarizer": _same,
    "FeatureVectorizer": _feature_vectorizer,
    "Imputer": _same,
    "LabelEncoder": _label_encoder,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "Normalizer": _same_shape,
    "OneHotEncoder": _one_hot,
    "Scaler": _same_shape,
    "SVMClassifier": _svm_classifier,
    "SVMRegressor": _svm_regressor,
}
