"""Rewrite a model with strings as one with codes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.frontend.categories.attributes import (
    INTEGER_LABELS,
    attributes_of,
    constant_strings,
    take,
)
from tvmopt.frontend.categories.collect import collect
from tvmopt.frontend.categories.mappings import Mappings
from tvmopt.frontend.categories.string_values import StringValues
from tvmopt.frontend.categories.tables import Tables, write_tables
from tvmopt.frontend.categories.zip_maps import drop_zip_maps
from tvmopt.frontend.operator_sets import ML_DOMAIN, is_default

# Table of an input whose strings are compared with none: a table must not be empty.
_NONE = ("",)


def without_strings(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with codes for strings, or ``model`` itself where it has none outside.

    A model whose inputs and outputs are numbers stays as it is, whatever is inside.

    Raises:
        ModelError: When strings are used otherwise than by mappings and comparisons; one line.
    """
    outside = (*model.graph.input, *model.graph.output)
    if not any(_is_foreign(value.type) for value in outside):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    columns = drop_zip_maps(copy.graph)
    strings = collect(copy.graph)
    _rewrite(copy.graph, strings)
    for entry in copy.opset_import:
        if entry.domain == ML_DOMAIN:
            entry.version = max(entry.version, 2)  # LabelEncoder from numbers to numbers
    inputs, outputs = (_tables(strings, side) for side in (copy.graph.input, copy.graph.output))
    _declare_codes(copy.graph, strings)
    write_tables(copy, Tables(inputs, outputs, columns))
    return copy


def _is_foreign(kind: onnx.TypeProto) -> bool:
    """Return whether a type is a string tensor, or maps of classes."""
    which = kind.WhichOneof("value")
    return which == "sequence_type" or kind.tensor_type.elem_type == TensorProto.STRING


def _tables(
    strings: StringValues, values: Iterable[onnx.ValueInfoProto]
) -> dict[str, tuple[str, ...]]:
    """Return the table of each value that is a string."""
    return {v.name: tuple(strings.table(v.name)) or _NONE for v in values if v.name in strings}


def _declare_codes(graph: onnx.GraphProto, strings: StringValues) -> None:
    """Give inputs and outputs the type of codes, and forget the types of values inside."""
    for value in (*graph.input, *graph.output):
        if value.name in strings:
            value.type.tensor_type.elem_type = TensorProto.INT64
    kept = [value for value in graph.value_info if value.name not in strings]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def _rewrite(graph: onnx.GraphProto, strings: StringValues) -> None:
    """Replace strings by codes; labels of classifiers come first in their tables."""
    for node in graph.node:
        if node.op_type in INTEGER_LABELS:
            _rewrite_labels(node, strings)
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.STRING:
            codes = np.array(strings.codes(tensor.name, tensor.string_data), "int64")
            name = tensor.name
            tensor.CopyFrom(numpy_helper.from_array(codes.reshape(tuple(tensor.dims)), name))
    mappings = Mappings(graph, strings)
    copies = []
    for node in graph.node:
        for made in _rewritten(node, strings, mappings):
            copies.append(onnx.NodeProto())
            copies[-1].CopyFrom(made)
    del graph.node[:]
    graph.node.extend(copies)


def _rewrite_labels(node: onnx.NodeProto, strings: StringValues) -> None:
    labels = take(node, "classlabels_strings")
    if labels:
        take(node, INTEGER_LABELS[node.op_type])
        codes = strings.codes(node.output[0], labels)
        node.attribute.append(helper.make_attribute(INTEGER_LABELS[node.op_type], codes))


def _rewritten(
    node: onnx.NodeProto, strings: StringValues, mappings: Mappings
) -> list[onnx.NodeProto]:
    """Return the nodes that take the place of a node."""
    op, attributes = node.op_type, attributes_of(node)
    source = node.input[0] if node.input and node.input[0] in strings else ""
    if op == "Constant" and is_default(node) and node.output[0] in strings:
        texts = constant_strings(attributes)
        assert texts is not None
        codes = np.array(strings.codes(node.output[0], texts.ravel().tolist()), "int64")
        tensor = numpy_helper.from_array(codes.reshape(texts.shape))
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("value", tensor))
    elif op == "OneHotEncoder" and source:
        known = strings.codes(source, take(node, "cats_strings"))
        node.attribute.append(helper.make_attribute("cats_int64s", known))
    elif op == "LabelEncoder":
        return mappings.label_encoder(node, attributes, source)
    elif op == "CategoryMapper":
        return mappings.category_mapper(node, attributes, source)
    elif op == "Cast" and source:
        if attributes["to"] != TensorProto.STRING:
            return mappings.parsed(node, attributes["to"], source)
        node.op_type = "Identity"
        del node.attribute[:]
    return [node]
