"""Read and remove attributes of nodes that hold strings, or values of a mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.errors import ModelError

#: Attribute with the integer labels of each classifier.
INTEGER_LABELS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}


def text(value: bytes | str | int) -> str:
    """Return a string of the model.

    Raises:
        ModelError: When it is not UTF-8.
    """
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise ModelError(
            f"strings of a model must be UTF-8, but {value!r:.40} is not; export the model again"
        ) from error


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def take(node: onnx.NodeProto, name: str) -> Any:
    """Remove an attribute, and return its value; None without it."""
    for place, attribute in enumerate(node.attribute):
        if attribute.name == name:
            value = helper.get_attribute_value(attribute)
            del node.attribute[place]
            return value
    return None


def labels_are_strings(op: str, attributes: Mapping[str, Any]) -> bool:
    """Return whether the first output of a classifier or a LabelEncoder is strings."""
    if op == "LabelEncoder":
        return strings_of(attributes, "values") is not None
    return op in INTEGER_LABELS and bool(attributes.get("classlabels_strings"))


def constant_strings(attributes: Mapping[str, Any]) -> np.ndarray | None:
    """Return the strings of a Constant; None of a numeric one."""
    if "value_string" in attributes:
        return np.array(attributes["value_string"], object)
    if "value_strings" in attributes:
        return np.array(attributes["value_strings"], object)
    tensor = attributes.get("value")
    if isinstance(tensor, onnx.TensorProto) and tensor.data_type == TensorProto.STRING:
        return np.array(list(tensor.string_data), object).reshape(tuple(tensor.dims))
    return None


def strings_of(attributes: Mapping[str, Any], side: str) -> Sequence[bytes] | None:
    """Return the keys or the values of a LabelEncoder that are strings; None of numbers."""
    if attributes.get(f"{side}_strings"):
        return list(attributes[f"{side}_strings"])
    tensor = attributes.get(f"{side}_tensor")
    if tensor is not None and tensor.data_type == TensorProto.STRING:
        return list(tensor.string_data)
    return None


def default_string(attributes: Mapping[str, Any]) -> bytes | str:
    """Return the string that a mapping gives for what it has no entry for."""
    tensor = attributes.get("default_tensor")
    if tensor is not None and tensor.data_type == TensorProto.STRING:
        return tensor.string_data[0]
    return attributes.get("default_string", b"_Unused")


def label_values(attributes: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the numeric values of a LabelEncoder, and the default."""
    tensor = attributes.get("values_tensor")
    if tensor is not None and tensor.data_type != TensorProto.STRING:
        values = numpy_helper.to_array(tensor).reshape(-1)
    elif attributes.get("values_floats"):
        values = np.array(attributes["values_floats"], "float32")
    else:
        values = np.array(attributes.get("values_int64s") or (), "int64")
    given = attributes.get("default_tensor")
    if given is not None and given.data_type != TensorProto.STRING:
        default = numpy_helper.to_array(given).reshape(-1)[0]
    elif values.dtype.kind == "f":
        default = np.float32(attributes.get("default_float", -0.0))
    else:
        default = np.int64(attributes.get("default_int64", -1))
    return values, np.array(default, values.dtype)
