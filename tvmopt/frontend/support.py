"""Find the operators that TVM's importer does not support, before and after it fails."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import onnx
from onnx import helper

from tvmopt.errors import last_line
from tvmopt.frontend.operator_sets import DEFAULT_DOMAINS

_DOMAINS = (*DEFAULT_DOMAINS, "ai.onnx.ml", "com.microsoft", "tvmopt")
_DIRECTLY_HANDLED = {"If", "Constant"}
_NAMES_SHOWN = 4
_LARGE = 64  # elements from which on the values of a constant are not compared


@dataclasses.dataclass(frozen=True)
class Unsupported:
    """A node that cannot be imported: operator, name and reason."""

    op: str
    node: str
    reason: str


def known_operators() -> frozenset[str]:
    """Return the operators that the importer converts."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    from tvmopt.frontend.converters import CONVERTERS

    return frozenset({*_get_convert_map(), *CONVERTERS, *_DIRECTLY_HANDLED})


def unknown_operators(model: onnx.ModelProto) -> list[Unsupported]:
    """Return nodes, including those in subgraphs, whose operator has no converter."""
    known = known_operators()
    found = []
    for node, index in _walk(model.graph):
        if node.domain not in _DOMAINS:
            found.append(Unsupported(f"{node.domain}.{node.op_type}", _name(node, index), "domain"))
        elif node.op_type not in known:
            found.append(Unsupported(node.op_type, _name(node, index), "no converter"))
    return found


def failing_nodes(
    model: onnx.ModelProto, importer: Callable[[onnx.ModelProto], object]
) -> list[Unsupported]:
    """Import every node of ``model`` on its own and return those that fail.

    Requires shapes inferred by :func:`tvmopt.frontend.prepare.prepare`. A node with an input of
    unknown shape is skipped, because its failure would prove nothing. Of nodes that differ in names
    and in the values of large constants only, the first is imported.
    """
    values = {v.name: v for v in [*model.graph.value_info, *model.graph.input, *model.graph.output]}
    constants = {i.name: i for i in model.graph.initializer}
    found = []
    reasons: dict[bytes, str | None] = {}
    for index, node in enumerate(model.graph.node):
        single = _single_node_model(model, node, values, constants)
        if single is None:
            continue
        kind = _kind(single)
        if kind not in reasons:
            try:
                importer(single)
            except Exception as error:  # any failure of a converter is a finding
                reasons[kind] = last_line(error, 160)
            else:
                reasons[kind] = None
        reason = reasons[kind]
        if reason is not None:
            found.append(Unsupported(node.op_type, _name(node, index), reason))
    return found


def every_node(model: onnx.ModelProto, reason: str) -> list[Unsupported]:
    """Return all nodes of ``model``, for one reason."""
    return [
        Unsupported(node.op_type, _name(node, index), reason)
        for index, node in enumerate(model.graph.node)
    ]


def _kind(single: onnx.ModelProto) -> bytes:
    """Return what nodes have in common that fail alike: all but names and large constants."""
    kind = onnx.ModelProto()
    kind.CopyFrom(single)
    graph = kind.graph
    names: dict[str, str] = {}
    for value in (*graph.input, *graph.output, *graph.initializer):
        names.setdefault(value.name, str(len(names)))
        value.name = names[value.name]
    for tensor in graph.initializer:
        if math.prod(tensor.dims) > _LARGE:
            shape, data_type, name = list(tensor.dims), tensor.data_type, tensor.name
            tensor.Clear()
            tensor.dims.extend(shape)
            tensor.data_type, tensor.name = data_type, name
    [node] = graph.node
    node.name, node.doc_string = "", ""
    for side in (node.input, node.output):
        for place, name in enumerate(side):
            side[place] = names.get(name, name and "?")
    return kind.SerializeToString(deterministic=True)


def describe(found: list[Unsupported]) -> str:
    """Return one line with every operator, its count, its nodes and the reason."""
    by_op: dict[str, list[Unsupported]] = {}
    for item in found:
        by_op.setdefault(item.op, []).append(item)
    parts = []
    for op in sorted(by_op):
        items = by_op[op]
        names = [i.node for i in items if i.node]
        shown = ", ".join(names[:_NAMES_SHOWN])
        more = f", +{len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        where = f" at {shown}{more}" if shown else ""
        parts.append(f"{op} x{len(items)}{where} ({items[0].reason})")
    return (
        f"{len(by_op)} operator type(s) of the model cannot be imported: {'; '.join(parts)}; "
        "replace them in the model or export it with another opset"
    )


def _walk(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, int]]:
    for index, node in enumerate(graph.node):
        yield node, index
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _walk(attribute.g)
            for sub in attribute.graphs:
                yield from _walk(sub)


def _name(node: onnx.NodeProto, index: int) -> str:
    return node.name or f"#{index}->{node.output[0] if node.output else ''}"


def _single_node_model(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    values: dict[str, onnx.ValueInfoProto],
    constants: dict[str, onnx.TensorProto],
) -> onnx.ModelProto | None:
    if any(a.HasField("g") or a.graphs for a in node.attribute):
        return None  # a subgraph may use names of the outer graph
    inputs, initializers = [], []
    for name in dict.fromkeys(filter(None, node.input)):
        if name in constants:
            initializers.append(constants[name])
        elif name in values and values[name].type.tensor_type.HasField("shape"):
            inputs.append(values[name])
        else:
            return None
    outputs = [
        values.get(name) or helper.make_empty_tensor_value_info(name)
        for name in node.output
        if name
    ]
    graph = helper.make_graph([node], "node", inputs, outputs, initializers)
    return helper.make_model(
        graph, opset_imports=list(model.opset_import), ir_version=model.ir_version
    )
