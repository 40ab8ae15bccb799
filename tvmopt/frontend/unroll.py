"""Unroll Loop and Scan whose number of iterations is constant.

before -> after: a Loop of n iterations -> n copies of the nodes of its body. The carried values of
one copy are the inputs of the next one. Values that an iteration gives out are concatenated.

A Loop is left alone when its condition or its number of iterations depends on data, and when it
would become more nodes than ``MOST_NODES``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvmopt.frontend.operator_sets import opset

#: Most nodes of all copies of one body.
MOST_NODES = 5000
#: Operators that are unrolled.
LOOPS = ("Loop", "Scan")
_AXES_AS_INPUT = 13  # opset from which on Unsqueeze takes its axes as an input


def unroll(model: onnx.ModelProto) -> bool:
    """Unroll every Loop and Scan that can be, in place; return whether there was any.

    Args:
        model: A model with inferred shapes.
    """
    changed = False
    version = opset(model)
    while _unroll_graph(model.graph, version, {}):  # the copies of a body may hold further loops
        changed = True
    if changed:
        del model.graph.value_info[:]
    return changed


@dataclasses.dataclass
class _Copies:
    """Nodes and constants that unrolling adds to a graph."""

    nodes: list[onnx.NodeProto]
    constants: list[onnx.TensorProto]
    opset: int
    name: str

    def constant(self, name: str, array: np.ndarray) -> str:
        name = f"{self.name}/{name}"
        if name not in {tensor.name for tensor in self.constants}:
            self.constants.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def stacked(self, values: Sequence[str], output: str, axis: int) -> None:
        """Concatenate one value of each iteration along a new axis."""
        apart: list[str] = []
        for value in values:
            name = f"{output}/{len(apart)}"
            if self.opset >= _AXES_AS_INPUT:
                axes = self.constant(f"axis {axis}", np.array([axis], "int64"))
                apart.append(self.add("Unsqueeze", [value, axes], name))
            else:
                node = helper.make_node("Unsqueeze", [value], [name], name=name, axes=[axis])
                self.nodes.append(node)
                apart.append(name)
        self.add("Concat", apart, output, axis=axis)


def _unroll_graph(graph: onnx.GraphProto, version: int, outer: Mapping[str, np.ndarray]) -> bool:
    constants = dict(outer)
    constants.update((t.name, numpy_helper.to_array(t)) for t in graph.initializer if _small(t))
    constants.update(_constant_nodes(graph))
    shapes = _shapes(graph)
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                changed |= _unroll_graph(attribute.g, version, constants)
        copies = _unrolled(node, constants, shapes, version)
        if copies is None:
            nodes.append(node)
        else:
            nodes.extend(copies.nodes)
            graph.initializer.extend(copies.constants)
            changed = True
    if changed:
        nodes = list(map(_copied, nodes))
        del graph.node[:]
        graph.node.extend(nodes)
    return changed


_Constants = Mapping[str, np.ndarray]
_Shapes = Mapping[str, list[int | None]]


def _unrolled(
    node: onnx.NodeProto, constants: _Constants, shapes: _Shapes, version: int
) -> _Copies | None:
    """Return the nodes that take the place of a loop; None for another node, and where it stays."""
    used = next(filter(None, node.output), "")
    if node.op_type not in LOOPS or not used:
        return None
    copies = _Copies([], [], version, node.name or used)
    unroll_it = {"Loop": _loop, "Scan": _scan}[node.op_type]
    return copies if unroll_it(node, constants, shapes, copies) else None


def _loop(node: onnx.NodeProto, constants: _Constants, shapes: _Shapes, copies: _Copies) -> bool:
    body = _body(node)
    count, condition, *carried = [*node.input, "", ""][: max(2, len(node.input))]
    if count not in constants or (condition and not _is_true(constants.get(condition))):
        return False
    trips = int(constants[count].reshape(()))
    if not _stays_true(body, constants) or not _affordable(body, trips):
        return False
    given: list[list[str]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    if trips <= 0 and given:
        return False  # a tensor without elements, whose shape nobody knows
    true = copies.constant("true", np.array(True))
    for trip in range(max(0, trips)):
        number = copies.constant(f"iteration {trip}", np.array(trip, "int64"))
        outputs = _copy_body(body, [number, true, *carried], trip, copies)
        carried, rest = outputs[1 : 1 + len(carried)], outputs[1 + len(carried) :]
        for values, value in zip(given, rest, strict=True):
            values.append(value)
    _finish(node, carried, given, [0] * len(given), copies)
    return True


def _scan(node: onnx.NodeProto, constants: _Constants, shapes: _Shapes, copies: _Copies) -> bool:
    body, attributes = _body(node), _attributes(node)
    scanned_count = int(attributes.get("num_scan_inputs", 0))
    if copies.opset < 9 or not 0 < scanned_count <= len(node.input):
        return False
    split = len(node.input) - scanned_count
    carried, scanned = list(node.input[:split]), list(node.input[split:])
    axes = list(attributes.get("scan_input_axes") or [0] * scanned_count)
    backward = list(attributes.get("scan_input_directions") or [0] * scanned_count)
    results = len(body.output) - split
    out_axes = list(attributes.get("scan_output_axes") or [0] * results)
    out_backward = list(attributes.get("scan_output_directions") or [0] * results)
    shape = shapes.get(scanned[0])
    trips = None if shape is None else shape[axes[0]]
    if not trips or not _affordable(body, trips):
        return False
    given: list[list[str]] = [[] for _ in range(results)]
    for trip in range(trips):
        slices: list[str] = []
        for value, axis, back in zip(scanned, axes, backward, strict=True):
            place = trips - 1 - trip if back else trip
            index = copies.constant(f"place {place}", np.array(place, "int64"))
            name = f"{copies.name}/{trip}/slice {len(slices)}"
            slices.append(copies.add("Gather", [value, index], name, axis=axis))
        outputs = _copy_body(body, [*carried, *slices], trip, copies)
        carried = outputs[:split]
        for values, value in zip(given, outputs[split:], strict=True):
            values.append(value)
    ordered = [
        values[::-1] if back else values for values, back in zip(given, out_backward, strict=True)
    ]
    _finish(node, carried, ordered, out_axes, copies)
    return True


def _finish(
    node: onnx.NodeProto, carried: Sequence[str], given: Sequence[Sequence[str]],
    axes: Sequence[int], copies: _Copies,
) -> None:  # fmt: skip
    """Give the outputs of the node their names."""
    names = [*node.output, *[""] * (len(carried) + len(given) - len(node.output))]
    for value, name in zip(carried, names, strict=False):
        if name:
            copies.add("Identity", [value], name)
    for values, name, axis in zip(given, names[len(carried) :], axes, strict=True):
        if name:
            copies.stacked(values, name, axis)


def _copy_body(
    body: onnx.GraphProto, arguments: Sequence[str], trip: int, copies: _Copies
) -> list[str]:
    """Copy the nodes of ``body`` for one iteration; return the names of its outputs."""
    new = {value.name: given for value, given in zip(body.input, arguments, strict=True)}
    for tensor in body.initializer:
        new[tensor.name] = f"{copies.name}/{tensor.name}"
        if trip == 0:
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            copy.name = new[tensor.name]
            copies.constants.append(copy)
    for node in body.node:
        new.update((name, f"{copies.name}/{trip}/{name}") for name in node.output if name)
    for node in body.node:
        copy = _copied(node)
        copy.name = f"{copies.name}/{trip}/{node.name}" if node.name else ""
        _rename(copy, new)
        copies.nodes.append(copy)
    return [new.get(output.name, output.name) for output in body.output]


def _rename(node: onnx.NodeProto, new: Mapping[str, str]) -> None:
    """Rename the values that a node uses and makes, also where its subgraphs use them."""
    for names in (node.input, node.output):
        for at, name in enumerate(names):
            names[at] = new.get(name, name)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            graph = attribute.g
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own.update(name for inner in graph.node for name in inner.output)
            left = {old: name for old, name in new.items() if old not in own}
            for inner in graph.node:
                _rename(inner, left)
            for output in graph.output:
                output.name = left.get(output.name, output.name)


def _stays_true(body: onnx.GraphProto, outer: _Constants) -> bool:
    """Return whether the condition that the body of a Loop gives is always true."""
    name, condition = body.output[0].name, body.input[1].name
    made = {node.output[0]: node for node in body.node if node.output}
    while name in made and made[name].op_type == "Identity":
        name = made[name].input[0]
    own = {t.name: numpy_helper.to_array(t) for t in body.initializer if _small(t)}
    known = {**outer, **own, **dict(_constant_nodes(body))}
    return name == condition or _is_true(known.get(name))


def _affordable(body: onnx.GraphProto, trips: int) -> bool:
    return trips * len(body.node) <= MOST_NODES


def _is_true(array: np.ndarray | None) -> bool:
    return array is not None and array.size == 1 and bool(array.reshape(()))


def _body(node: onnx.NodeProto) -> onnx.GraphProto:
    return next(a.g for a in node.attribute if a.name == "body")


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name != "body"}


def _constant_nodes(graph: onnx.GraphProto) -> Iterator[tuple[str, np.ndarray]]:
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value" and _small(attribute.t):
                yield node.output[0], numpy_helper.to_array(attribute.t)


def _small(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor may be a condition or a number of iterations."""
    stored = tensor.data_location != onnx.TensorProto.EXTERNAL
    return stored and int(np.prod(tensor.dims, dtype="int64")) == 1


def _shapes(graph: onnx.GraphProto) -> dict[str, list[int | None]]:
    found: dict[str, list[int | None]] = {t.name: list(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape"):
            found[value.name] = [
                d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim
            ]
    return found


def _copied(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
