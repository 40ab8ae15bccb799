"""Partition a model: what cannot be compiled becomes segments that ONNX Runtime runs.

before -> after: nodes that cannot be compiled -> one node ``tvmopt.OnnxRuntime`` a segment, which
holds these nodes as a separate model. Nodes that share values with them that no compiled function
takes, such as texts or tensors of a shape that is known at run time only, belong to the segment.

Every node gets a level, which rises along an edge between a compiled and another node. The
nodes of one level that cannot be compiled are one segment. No order of execution needs fewer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, helper

from tvmopt.errors import UnsupportedOperatorError
from tvmopt.frontend.inferred_shapes import is_static
from tvmopt.frontend.support import Unsupported

#: Operator type of the node that stands for a segment; its domain is ``DOMAIN``.
OPERATOR, DOMAIN = "OnnxRuntime", "tvmopt"
#: What the line of a segment says, between its number of nodes and their reasons.
RUN_ELSEWHERE = "node(s) run in ONNX Runtime: "
#: Attribute that holds the segment's model.
MODEL_ATTRIBUTE = "model"
# Types that a compiled function takes and gives.
_TYPES = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BOOL,
    TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16,
    TensorProto.INT32, TensorProto.UINT32, TensorProto.INT64, TensorProto.UINT64,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Segment:
    """Nodes that ONNX Runtime runs.

    Attributes:
        nodes: Names of its nodes, in order.
        reasons: Why each of them is not compiled, by name; for the others ``"passes values that
            no compiled function takes"``.
    """

    nodes: tuple[str, ...]
    reasons: Mapping[str, str]

    @property
    def line(self) -> str:
        """One line: number of nodes and reasons."""
        known = [f"{name} ({why})" for name, why in self.reasons.items()]
        shown = ", ".join(known[:4]) + (f", +{len(known) - 4} more" if len(known) > 4 else "")
        return f"{len(self.nodes)} {RUN_ELSEWHERE}{shown}"


def partition(
    model: onnx.ModelProto, unsupported: Sequence[Unsupported]
) -> tuple[onnx.ModelProto, list[Segment]]:
    """Return the model with a node for each segment, and the segments; ``model`` does not change.

    Args:
        model: A prepared model: sorted, every node with a unique name, shapes inferred.
        unsupported: Nodes that cannot be compiled; one in a subgraph stands for the whole node.

    Raises:
        UnsupportedOperatorError: When a value between a segment and the rest has no known type, or
            a call could end the process in ONNX Runtime.
    """
    why = {item.node: f"{item.op}: {item.reason}" for item in unsupported}
    reasons: dict[int, str] = {}
    for at, node in enumerate(model.graph.node):
        found = [why[name] for name in _names(node) if name in why]
        if found:
            reasons[at] = found[0]
    values = _values(model.graph)
    outside = _spread(model.graph, set(reasons), values)
    _require_constant_steps(model.graph, outside)
    levels = _levels(model.graph, outside)
    order = sorted(range(len(model.graph.node)), key=lambda at: (levels[at], at))
    out = onnx.ModelProto()
    out.CopyFrom(model)
    del out.graph.node[:]
    segments: list[Segment] = []
    for level in sorted(set(levels.values())):
        members = [at for at in order if levels[at] == level]
        nodes = [model.graph.node[at] for at in members]
        if members[0] not in outside:
            out.graph.node.extend(nodes)
            continue
        out.graph.node.append(_segment_node(model, nodes, values, len(segments)))
        own = {model.graph.node[at].name: reasons[at] for at in members if at in reasons}
        segments.append(Segment(tuple(node.name for node in nodes), own))
    if not any(entry.domain == DOMAIN for entry in out.opset_import):
        out.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return out, segments


def _require_constant_steps(graph: onnx.GraphProto, outside: Collection[int]) -> None:
    """Refuse an STFT whose step a call may set to 0: ONNX Runtime 1.31 divides by it."""
    constants = {tensor.name for tensor in graph.initializer}
    for at in sorted(outside):
        node = graph.node[at]
        if node.op_type == "STFT" and node.input[1] not in constants:
            raise UnsupportedOperatorError(
                f"frame_step of STFT must be constant, but that of node {node.name!r} is a value "
                "of the call: a step of 0 ends the process in ONNX Runtime; make it an initializer"
            )


def dynamic_nodes(model: onnx.ModelProto) -> list[Unsupported]:
    """Return the nodes that take or give values whose shapes are known at run time only."""
    values = _values(model.graph)
    known = {tensor.name for tensor in model.graph.initializer}
    known.update(name for name, kind in values.items() if is_static(kind))
    return [
        Unsupported(node.op_type, node.name, "a shape known at run time only")
        for node in model.graph.node
        if not {*used_values(node), *filter(None, node.output)} <= known
    ]


def _names(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of a node and of all nodes in its subgraphs."""
    yield node.name
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            for inner in graph.node:
                yield from _names(inner)


def _values(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    return {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}


def _spread(
    graph: onnx.GraphProto, found: set[int], values: Mapping[str, onnx.TypeProto]
) -> set[int]:
    """Add every node that takes or gives a value of a type that no compiled function has."""
    foreign = {
        name
        for name, kind in values.items()
        if kind.WhichOneof("value") not in (None, "tensor_type")
        or (kind.tensor_type.elem_type and kind.tensor_type.elem_type not in _TYPES)
    }
    outside = set(found)
    for at, node in enumerate(graph.node):
        if at in outside or foreign & {*used_values(node), *node.output}:
            outside.add(at)
            foreign.update(name for name in node.output if not is_static(values.get(name)))
    return outside


def used_values(node: onnx.NodeProto) -> set[str]:
    """Return the values that a node uses, also those that its subgraphs take from outside."""
    used = set(filter(None, node.input))
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            own = {value.name for value in (*graph.input, *graph.initializer)}
            inner = {output.name for output in graph.output}
            for each in graph.node:
                inner |= used_values(each)
                own.update(each.output)
            used |= inner - own
    return used


def _levels(graph: onnx.GraphProto, outside: Collection[int]) -> dict[int, int]:
    """Return the level of each node: even where it is compiled, odd in a segment."""
    made: dict[str, int] = {}
    levels: dict[int, int] = {}
    for at, node in enumerate(graph.node):
        odd = at in outside
        level = int(odd)
        for name in used_values(node):
            before = made.get(name, 0)
            level = max(level, before + (before % 2 != odd))
        levels[at] = level
        made.update(dict.fromkeys(filter(None, node.output), level))
    return levels


def _segment_node(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, onnx.TypeProto], number: int,
) -> onnx.NodeProto:  # fmt: skip
    """Return the node that stands for ``nodes``."""
    made = [name for node in nodes for name in node.output if name]
    used = dict.fromkeys(name for node in nodes for name in sorted(used_values(node)))
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    inputs = [name for name in used if name not in constants and name not in set(made)]
    inside = {node.name for node in nodes}
    needed = {output.name for output in model.graph.output}
    for node in model.graph.node:
        if node.name not in inside:
            needed |= used_values(node)
    outputs = [name for name in made if name in needed]
    graph = helper.make_graph(
        nodes,
        f"segment {number}",
        [_declared(name, values) for name in inputs],
        [_declared(name, values) for name in outputs],
        [constants[name] for name in used if name in constants],
    )
    part = helper.make_model(
        graph, opset_imports=list(model.opset_import), ir_version=model.ir_version
    )
    return helper.make_node(
        OPERATOR,
        inputs,
        outputs,
        name=f"onnxruntime/{number}",
        domain=DOMAIN,
        **{MODEL_ATTRIBUTE: part.SerializeToString(deterministic=True)},
    )


def _declared(name: str, values: Mapping[str, onnx.TypeProto]) -> onnx.ValueInfoProto:
    kind = values.get(name)
    if kind is None or not kind.tensor_type.elem_type:
        raise UnsupportedOperatorError(
            "values between compiled nodes and ONNX Runtime must have a known type, but "
            f"{name!r} has none; give static input_shapes, or remove the operator that makes it"
        )
    return helper.make_value_info(name, kind)
