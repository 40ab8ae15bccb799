"""Find the string values of a graph; refuse operators that do more than move or compare them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto

from tvmopt.errors import ModelError
from tvmopt.frontend.categories.attributes import (
    attributes_of,
    constant_strings,
    labels_are_strings,
)
from tvmopt.frontend.categories.string_values import StringValues
from tvmopt.frontend.external import graphs
from tvmopt.frontend.operator_sets import is_default

# Operators that move values, by the places of the inputs that hold them; None for all.
_MOVES: dict[str, Sequence[int] | None] = {
    "ArrayFeatureExtractor": (0,), "Concat": None, "Expand": (0,), "Flatten": (0,), "Gather": (0,),
    "GatherElements": (0,), "GatherND": (0,), "Identity": (0,), "Reshape": (0,), "Slice": (0,),
    "Split": (0,), "Squeeze": (0,), "Tile": (0,), "Transpose": (0,), "Unsqueeze": (0,),
    "Where": (1, 2),
}  # fmt: skip
_MAPPINGS = ("OneHotEncoder", "LabelEncoder", "CategoryMapper", "Cast")


def collect(graph: onnx.GraphProto) -> StringValues:
    """Return the string values of a graph.

    Raises:
        ModelError: When an operator uses strings otherwise than to move, compare or map them, or
            an output may hold any string of an input.
    """
    strings = StringValues()
    for value in graph.input:
        if value.type.tensor_type.elem_type == TensorProto.STRING:
            strings.add(value.name, from_call=True)
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.STRING:
            strings.add(tensor.name)
            strings.from_call.discard(tensor.name)
    for node in graph.node:
        _collect_node(strings, node)
    for output in graph.output:
        if output.name in strings.from_call:
            raise ModelError(
                "string outputs must come from tables of the model, but output "
                f"{output.name!r} may hold any string of an input; remove it from the model"
            )
    return strings


def refused(node: onnx.NodeProto, why: str = "uses them otherwise") -> ModelError:
    """Return the error for a node that uses strings as codes cannot be used."""
    return ModelError(
        "strings of a model must only be compared with its categories or mapped by them, but "
        f"{node.op_type} {node.name or node.output[0]!r} {why}; do this before the model, and "
        "export the model for numbers"
    )


def _collect_node(strings: StringValues, node: onnx.NodeProto) -> None:
    taken = [name for name in node.input if name in strings]
    op, attributes = node.op_type, attributes_of(node)
    if any(name in strings for a in node.attribute if a.HasField("g") for name in _used(a.g)):
        raise refused(node)
    if op == "Constant" and is_default(node):
        if constant_strings(attributes) is not None:
            strings.add(node.output[0])
    elif op in _MOVES and taken:
        _collect_move(strings, node, taken)
    elif op == "Equal" and taken:
        if len(strings.from_call & set(taken)) > 1:
            raise refused(node, "compares two strings of the call")
        strings.join(taken)
    elif op == "Cast" and attributes.get("to") == TensorProto.STRING:
        if not taken:
            raise refused(node, "makes strings of numbers")
        strings.join([*taken, *node.output])
        strings.from_call.update(node.output if set(taken) & strings.from_call else ())
    elif op == "Cast" and taken and strings.from_call & set(taken):
        raise refused(node, "makes numbers of strings")
    elif labels_are_strings(op, attributes):
        strings.add(node.output[0])
    elif op == "LabelEncoder" and "classes_strings" in attributes and not taken:
        raise refused(node, "of version 1 makes strings of numbers")
    elif op == "CategoryMapper" and not taken:
        strings.add(node.output[0])
    elif taken and op not in _MAPPINGS:
        raise refused(node)


def _collect_move(strings: StringValues, node: onnx.NodeProto, taken: list[str]) -> None:
    places = _MOVES[node.op_type]
    moved = taken if places is None else [node.input[at] for at in places]
    if set(moved) != set(taken):
        raise refused(node)
    strings.join([*moved, *filter(None, node.output)])
    if strings.from_call & set(moved):
        strings.from_call.update(node.output)


def _used(graph: onnx.GraphProto) -> set[str]:
    """Return the names that the nodes of a subgraph use."""
    return {name for each in graphs(graph) for node in each.node for name in node.input}
