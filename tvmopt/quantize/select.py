"""Select the nodes of a float model that run in integers.

Anchors decide: a convolution, Gemm or MatMul with constant weights that is not excluded. Operators
between anchors (concatenations, pooling, data movement, with ``Scheme.integer_adds`` residual
additions) join when integer nodes make all their inputs and an integer node reads their result.
Otherwise quantizing them costs accuracy and saves nothing. Relu, Clip and the addition of a
constant are the epilogue of the operator before them and are skipped in the search.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx

from tvmopt.frontend.operator_sets import is_default
from tvmopt.quantize.graph import Graph, attributes
from tvmopt.quantize.scheme import Scheme

ANCHORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
SHARING = (
    "MaxPool", "AveragePool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice",
    "Pad", "Split", "Resize",
)  # fmt: skip
"""Operators whose output has the scale of their input: on integers they only move or compare."""
JOINING = ("Add", "Concat", "GlobalAveragePool", *SHARING)


def why_float(graph: Graph, node: onnx.NodeProto, scheme: Scheme) -> str | None:
    """Return why a node cannot be an integer anchor; None when it can."""
    if node.op_type not in ANCHORS or not is_default(node):
        return f"{node.op_type} has no integer form"
    if not graph.is_activation(node.input[0]):
        return "its first operand is no float32 activation"
    weight = node.input[1]
    if weight not in graph.constants:
        if node.op_type == "MatMul" and graph.is_activation(weight):
            return None if scheme.activation_matmul else "both operands are activations"
        return "its weights are no constant"
    if not graph.is_float(weight):
        return "its weights are not float32"
    rank = len(graph.constants[weight].dims)
    if node.op_type == "ConvTranspose" and attributes(node).get("group", 1) != 1:
        return "its weights have no axis of output channels (transposed, in groups)"
    if node.op_type == "MatMul" and rank != 2:
        return "its weights are no matrix"
    if node.op_type == "Gemm" and _odd_gemm(graph, node):
        return "its Gemm is transposed or its bias is not one value a column"
    bias = node.input[2] if len(node.input) > 2 else ""
    if bias and (bias not in graph.constants or not graph.is_float(bias)):
        return "its bias is no float32 constant"
    return None


def integer_anchors(graph: Graph, scheme: Scheme) -> list[onnx.NodeProto]:
    """Return the nodes that can be integer anchors."""
    return [n for n in graph.nodes if n.op_type in ANCHORS and why_float(graph, n, scheme) is None]


def integer_nodes(graph: Graph, scheme: Scheme, exclude: Collection[str] = ()) -> set[str]:
    """Return the names of nodes that run in integers when the nodes ``exclude`` do not.

    This is the largest set in which the others justify every joining operator, so that excluding
    more nodes only makes it smaller.
    """
    chosen = {n.name for n in integer_anchors(graph, scheme) if n.name not in exclude}
    anchors = set(chosen)
    joins = [n for n in graph.nodes if n.name not in exclude and _can_join(graph, n, scheme)]
    chosen.update(n.name for n in joins)
    while True:
        kept = [n for n in joins if _is_justified(graph, n, chosen, anchors)]
        if len(kept) == len(joins):
            return chosen
        chosen = anchors | {n.name for n in kept}
        joins = kept


def quantised_tensors(graph: Graph, scheme: Scheme) -> list[str]:
    """Return activations that need a range under any exclusion, in topological order."""
    chosen = integer_nodes(graph, scheme)
    names: dict[str, None] = {}
    for node in graph.nodes:
        if node.name in chosen:
            names.update((name, None) for name in data_inputs(graph, node))
            if node.op_type in JOINING:
                names.update((name, None) for name in node.output if graph.is_activation(name))
    return list(names)


def data_inputs(graph: Graph, node: onnx.NodeProto) -> list[str]:
    """Return the activations that a node computes with; no sizes, paddings and the like."""
    several = node.op_type in ("Add", "Concat", "MatMul")
    candidates = node.input if several else node.input[:1]
    return [name for name in candidates if graph.is_activation(name)]


def source(graph: Graph, name: str) -> onnx.NodeProto | None:
    """Return the producer of a tensor, looking through epilogues; None for an input."""
    node = graph.producer.get(name)
    while node is not None and is_epilogue(graph, node):
        node = graph.producer.get(data_inputs(graph, node)[0])
    return node


def sinks(graph: Graph, name: str) -> Iterator[onnx.NodeProto]:
    """Yield the consumers of a tensor, looking through epilogues."""
    for node in graph.consumers.get(name, []):
        if is_epilogue(graph, node):
            yield from sinks(graph, node.output[0])
        else:
            yield node


def is_epilogue(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return whether a node is Relu, Clip with constant bounds, or the addition of a constant."""
    if node.op_type not in ("Relu", "Clip", "Add"):
        return False
    activations = [name for name in node.input if name and name not in graph.constants]
    return len(activations) == 1 and graph.is_activation(activations[0])


def is_sum(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return whether a node adds two activations, as residual connections do."""
    return node.op_type == "Add" and not any(name in graph.constants for name in node.input)


def _can_join(graph: Graph, node: onnx.NodeProto, scheme: Scheme) -> bool:
    if node.op_type not in JOINING or not is_default(node):
        return False
    if node.op_type == "Add" and not scheme.integer_adds:
        return False
    if is_epilogue(graph, node) or not graph.is_activation(node.input[0]):
        return False
    if node.op_type in ("Add", "Concat"):
        return len(data_inputs(graph, node)) == len(node.input)
    if any(name and name not in graph.constants for name in node.input[1:]):
        return False
    attrs = attributes(node)
    if node.op_type == "MaxPool":
        return len(node.output) == 1
    if node.op_type == "Resize":
        return attrs.get("mode", b"nearest") == b"nearest"
    if node.op_type == "Pad":
        value = node.input[2] if len(node.input) > 2 else ""
        return attrs.get("mode", b"constant") != b"constant" or not value
    return True


def _is_justified(graph: Graph, node: onnx.NodeProto, chosen: set[str], anchors: set[str]) -> bool:
    for name in data_inputs(graph, node):
        made = source(graph, name)
        integer = made is not None and made.name in chosen
        # An anchor that reads the same tensor needs it quantized anyway.
        shared = any(other.name in anchors for other in graph.consumers.get(name, []))
        if not integer and not shared:
            return False
    return any(reader.name in chosen for name in node.output for reader in sinks(graph, name))


def _odd_gemm(graph: Graph, node: onnx.NodeProto) -> bool:
    attrs = attributes(node)
    if attrs.get("transA", 0):
        return True
    columns = graph.constants[node.input[1]].dims[0 if attrs.get("transB", 0) else 1]
    bias = graph.constants.get(node.input[2]) if len(node.input) > 2 else None
    if bias is None:
        return False
    dims = list(bias.dims)
    one_row = all(d == 1 for d in dims[:-1])
    return not one_row or (bool(dims) and dims[-1] not in (1, columns))
