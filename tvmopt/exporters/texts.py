"""Replace texts in an ONNX graph by whole numbers: each text of its constants gets a code.

A graph of scikit-learn compares texts for equality only: with the categories of an encoder, with
the value that stands for a missing one. Codes compare as the texts do, so an int64 tensor can take
the place of each text tensor. A text that no constant holds has the code -1, which equals none.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.errors import ModelError

# Operators that move or compare texts.
_PLAIN = frozenset(
    {
        "Concat", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Flatten", "Gather", "Slice",
        "Transpose", "Equal", "Where", "Split", "Expand", "ArrayFeatureExtractor",
        "OneHotEncoder", "LabelEncoder", "Not", "Or", "And",
    }
)  # fmt: skip
_LISTS = {
    "cats_strings": "cats_int64s", "keys_strings": "keys_int64s", "values_strings": "values_int64s",
    "classlabels_strings": "classlabels_int64s",
}  # fmt: skip
_DEFAULTS = {"default_string": "default_int64"}


def without_texts(model: onnx.ModelProto) -> tuple[str, ...]:
    """Replace the texts of ``model`` by codes; return the texts in the order of their codes.

    Raises:
        ModelError: When a node does more with texts than to compare them.
    """
    graph = model.graph
    codes = {word: code for code, word in enumerate(sorted(set(_words(graph))))}
    texts = {v.name for v in (*graph.input, *graph.output, *graph.value_info)
             if v.type.tensor_type.elem_type == TensorProto.STRING}  # fmt: skip
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.STRING:
            texts.add(tensor.name)
            numbers = [codes[word.decode()] for word in tensor.string_data]
            array = np.array(numbers, np.int64).reshape(tuple(tensor.dims))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for node in graph.node:
        _replace_attributes(node, codes)
        if texts & set(node.input):
            is_cast = node.op_type == "Cast"
            if node.op_type not in _PLAIN and not is_cast:
                raise ModelError(
                    f"texts of a model must only be compared with constants, but {node.op_type} "
                    f"at {node.name!r} takes them; encode them before the model"
                )
            if is_cast and _cast_type(node) != TensorProto.STRING:
                raise ModelError(
                    "texts of a model must not be turned into numbers, but a Cast at "
                    f"{node.name!r} does; encode them before the model"
                )
            if node.op_type not in ("Equal", "OneHotEncoder", "LabelEncoder"):
                texts.update(node.output)
        if node.op_type == "Cast" and _cast_type(node) == TensorProto.STRING:
            if not texts & set(node.input):
                raise ModelError(
                    f"numbers must not be turned into texts, but a Cast at {node.name!r} does; "
                    "give the column as text"
                )
            node.op_type = "Identity"
            del node.attribute[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.STRING:
            value.type.tensor_type.elem_type = TensorProto.INT64
    del graph.value_info[:]
    return tuple(codes)


def _cast_type(node: onnx.NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "to"), 0)


def _words(graph: onnx.GraphProto) -> Iterator[str]:
    for tensor in graph.initializer:
        yield from (word.decode() for word in tensor.string_data)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _LISTS:
                yield from (word.decode() for word in attribute.strings)
            elif attribute.name in _DEFAULTS:
                yield attribute.s.decode()


def _replace_attributes(node: onnx.NodeProto, codes: dict[str, int]) -> None:
    found = []
    changed = any(attribute.name in _LISTS for attribute in node.attribute)
    for attribute in node.attribute:
        if attribute.name in _LISTS and attribute.strings:
            numbers = [codes[word.decode()] for word in attribute.strings]
            found.append(helper.make_attribute(_LISTS[attribute.name], numbers))
        elif attribute.name in _DEFAULTS and changed:
            code = codes[attribute.s.decode()]
            found.append(helper.make_attribute(_DEFAULTS[attribute.name], code))
        else:
            found.append(attribute)
    if changed:
        kept = [onnx.AttributeProto.FromString(one.SerializeToString()) for one in found]
        del node.attribute[:]
        node.attribute.extend(kept)
