"""Rewrite a Scan that compares each row with all rows of a matrix as operators on all pairs.

before -> after: ``Scan(matrix, rows)`` whose body computes, say, the squared distances of one row
to all rows of ``matrix`` -> the same operators on ``matrix`` (1, m, features) and ``rows``
(n, 1, features). skl2onnx exports the distances of nearest neighbours in this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvmopt.frontend.operator_sets import is_default, opset

_ELEMENTWISE = ("Identity", "Sub", "Add", "Mul", "Div", "Abs", "Sqrt", "Pow", "Neg")
_REDUCTIONS = ("ReduceSum", "ReduceSumSquare", "ReduceMax", "ReduceL1", "ReduceL2")
_AXES_AS_INPUT = 13  # opset from which on Unsqueeze takes its axes as an input


def rewrite_pairwise_scans(model: onnx.ModelProto) -> None:
    """Rewrite every such Scan of a model, in place."""
    if opset(model) < _AXES_AS_INPUT:
        return
    graph = model.graph
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        made = _rewritten(node, graph) if node.op_type == "Scan" and is_default(node) else None
        nodes.extend([node] if made is None else made)
    copies = [_copied(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _copied(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _rewritten(node: onnx.NodeProto, graph: onnx.GraphProto) -> list[onnx.NodeProto] | None:
    """Return the operators that take the place of a Scan; None where it has another form."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    body: onnx.GraphProto = given.pop("body")
    plain = all(not any(np.atleast_1d(v)) for k, v in given.items() if k != "num_scan_inputs")
    shape = len(node.input) == len(node.output) == len(body.output) == 2
    if not plain or not shape or given.get("num_scan_inputs") != 1:
        return None
    prefix = f"{node.name or node.output[1]}/pairs"
    constants = {tensor.name: tensor for tensor in body.initializer}
    values = {body.input[0].name: f"{prefix}/matrix", body.input[1].name: f"{prefix}/rows"}
    added: list[onnx.TensorProto] = []
    made = [
        _unsqueezed(added, node.input[place], f"{prefix}/{name}", place)
        for place, name in enumerate(("matrix", "rows"))
    ]
    of_pairs = set(values)  # values with the axes of all pairs
    for inner in body.node:
        copy = _on_pairs(inner, constants, of_pairs, prefix, added)
        if copy is None:
            return None
        for at, name in enumerate(copy.input):
            copy.input[at] = values.get(name, name)
        values[inner.output[0]] = copy.output[0]
        made.append(copy)
    if _origin(body, body.output[0].name) != body.input[0].name:
        return None
    kept = {name for one in made for name in one.input}
    for tensor in (*added, *(t for t in body.initializer if t.name in kept)):
        copied = graph.initializer.add()
        copied.CopyFrom(tensor)
    made.append(helper.make_node("Identity", [node.input[0]], [node.output[0]]))
    result = values[body.output[1].name]
    made.append(helper.make_node("Identity", [result], [node.output[1]], name=prefix))
    return made


def _unsqueezed(added: list[onnx.TensorProto], name: str, output: str, axis: int) -> onnx.NodeProto:
    axes = numpy_helper.from_array(np.array([axis]), f"{output}/axis")
    added.append(axes)
    return helper.make_node("Unsqueeze", [name, axes.name], [output], name=output)


def _on_pairs(
    inner: onnx.NodeProto, constants: dict[str, onnx.TensorProto], of_pairs: set[str], prefix: str,
    added: list[onnx.TensorProto],
) -> onnx.NodeProto | None:  # fmt: skip
    """Return a copy of a node of the body that computes all pairs; None for another operator."""
    copy = _copied(inner)
    copy.output[0] = f"{prefix}/{inner.output[0]}"
    copy.name = copy.output[0]
    if inner.op_type in _REDUCTIONS:
        attributes = {a.name: helper.get_attribute_value(a) for a in inner.attribute}
        axes = attributes.get("axes")
        if len(inner.input) > 1:
            tensor = constants.get(inner.input[1])
            axes = None if tensor is None else numpy_helper.to_array(tensor).reshape(-1).tolist()
        if not _is_of_features(axes) or inner.input[0] not in of_pairs:
            return None
        _set_axes(copy, inner, prefix, added)
        if not attributes.get("keepdims", 1):
            return copy
        of_pairs.add(inner.output[0])
        return copy
    scalars = (constants[name] for name in inner.input if name in constants)
    if inner.op_type not in _ELEMENTWISE or any(np.prod(t.dims) > 1 for t in scalars):
        return None
    values = [name for name in inner.input if name not in constants]
    if len({name in of_pairs for name in values}) > 1:
        return None  # a sum over features beside features: broadcasting would differ
    if values and values[0] in of_pairs:
        of_pairs.add(inner.output[0])
    return copy


def _is_of_features(axes: Sequence[Any] | None) -> bool:
    """Return whether a reduction of (m, features) is one over the features."""
    return axes is not None and [int(axis) for axis in axes] in ([1], [-1])


def _set_axes(
    copy: onnx.NodeProto, inner: onnx.NodeProto, prefix: str, added: list[onnx.TensorProto]
) -> None:
    """Let a reduction sum over the last of three axes."""
    if len(inner.input) > 1:
        tensor = numpy_helper.from_array(np.array([2]), f"{prefix}/{inner.output[0]}/axes")
        added.append(tensor)
        copy.input[1] = tensor.name
        return
    next(a for a in copy.attribute if a.name == "axes").ints[:] = [2]


def _origin(body: onnx.GraphProto, name: str) -> str:
    """Return the value of which ``name`` is a copy."""
    made = {node.output[0]: node for node in body.node}
    while name in made and made[name].op_type == "Identity":
        name = made[name].input[0]
    return name
