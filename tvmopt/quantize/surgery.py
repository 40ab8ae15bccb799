"""Clean up a quantized graph: float readers read floats, and concatenations rescale once.

Each pass edits the graph in place. A *pair* is ``t -> QuantizeLinear -> DequantizeLinear -> t'``.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import onnx

from tvmopt.quantize.graph import Graph, reads
from tvmopt.quantize.select import SHARING, is_sum, source

# Elements of a result that residual additions read in float32 beside its 8-bit form. Up to here the
# network takes 1.00 to 1.03 of the time, and with larger tensors up to 1.33, see
# benchmarks/results/2026-11-30-exact-operands.md.
_MOST_STORED_TWICE = 100_000


def clean_up(graph: onnx.GraphProto, integer: Collection[str], *, exact_sums: bool) -> None:
    """Apply the passes below.

    Args:
        graph: The quantized graph.
        integer: Names of the nodes that run in integers.
        exact_sums: As of :func:`free_float_readers`.
    """
    free_outputs(graph)
    free_float_readers(graph, integer, exact_sums=exact_sums)
    share_concat_scales(graph)
    drop_unread(graph)
    sort_topologically(graph)


def free_outputs(graph: onnx.GraphProto) -> None:
    """Keep model outputs unrounded.

    before -> after: ``t_in -> Q -> DQ -> t (output)`` -> ``t (output) -> Q -> DQ -> t'``.
    """
    index = Graph(graph)
    for name in index.outputs:
        dequantise = index.producer.get(name)
        pair = _pair(index, dequantise)
        if dequantise is None or pair is None:
            continue
        inner = f"{name}_DequantizeLinear_Output"
        for node in index.consumers.get(name, []):
            _replace_input(node, name, inner)
        dequantise.output[0] = inner
        exact = pair.input[0]
        producer = index.producer[exact]
        producer.output[:] = [name if o == exact else o for o in producer.output]
        for node in index.consumers[exact]:
            _replace_input(node, exact, name)


def free_float_readers(
    graph: onnx.GraphProto, integer: Collection[str], *, exact_sums: bool
) -> None:
    """Let float nodes read the exact value when a float node makes it.

    When an integer node makes the value, float nodes keep reading the 8-bit value; otherwise it
    would be stored twice. With ``exact_sums``, residual additions read the exact value of a small
    tensor all the same: each later sum holds the error of rounding it, and storing it twice takes
    little time.

    before -> after: ``t -> Q -> DQ -> {Conv (integer), Sigmoid}`` ->
    ``t -> {Q -> DQ -> Conv, Sigmoid}`` when ``t`` is made by a float node or is an input.
    """
    index = Graph(graph)
    for dequantise in index.nodes:
        pair = _pair(index, dequantise)
        if pair is None:
            continue
        made = source(index, pair.input[0])
        is_integer = made is not None and made.name in integer
        is_small = exact_sums and _has_at_most(index.dims(pair.input[0]), _MOST_STORED_TWICE)
        for node in index.consumers.get(dequantise.output[0], []):
            may_read = not is_integer or (is_small and is_sum(index, node))
            if node.name not in integer and may_read:
                _replace_input(node, dequantise.output[0], pair.input[0])


def share_concat_scales(graph: onnx.GraphProto) -> None:
    """Quantize inputs that only a concatenation reads with the scale of its result.

    A separate scale loses accuracy, and rescaling costs time. With one scale, the concatenation
    copies bytes.

    before -> after: ``Q(Concat(DQ(Q(a, s1), s1), ...), s)`` ->
    ``Q(Concat(DQ(Q(a, s), s), ...), s)``
    """
    index = Graph(graph)
    for node in index.nodes:
        if node.op_type != "Concat":
            continue
        after = [n for n in index.consumers.get(node.output[0], []) if _is(n, "QuantizeLinear")]
        if len(after) != 1 or len(index.consumers[node.output[0]]) != 1:
            continue
        for name in node.input:
            dequantise = index.producer.get(name)
            pair = _pair(index, dequantise)
            if dequantise is None or pair is None or index.consumers[name] != [node]:
                continue
            maker = index.producer.get(pair.input[0])
            if maker is not None and maker.op_type in SHARING:
                continue  # its scale equals its own input's
            if len(index.consumers[pair.output[0]]) == 1:
                pair.input[1:] = after[0].input[1:]
                dequantise.input[1:] = after[0].input[1:]


def drop_unread(graph: onnx.GraphProto) -> None:
    """Remove Q and DQ nodes without readers, and constants without readers."""
    while True:
        index = Graph(graph)
        unread = {
            node.output[0]
            for node in index.nodes
            if _is(node, "QuantizeLinear", "DequantizeLinear")
            and not index.consumers.get(node.output[0])
            and node.output[0] not in index.outputs
        }
        if not unread:
            break
        kept = [n for n in graph.node if not n.output or n.output[0] not in unread]
        del graph.node[:]
        graph.node.extend(kept)
    constants = [
        i for i in graph.initializer if i.name in index.consumers or i.name in index.outputs
    ]
    del graph.initializer[:]
    graph.initializer.extend(constants)


def sort_topologically(graph: onnx.GraphProto) -> None:
    """Move Q and DQ nodes, which the quantizer appends, before their readers; others keep order."""
    index = Graph(graph)
    done: set[int] = set()
    ordered: list[onnx.NodeProto] = []
    for start in index.nodes:
        stack = [start]
        while stack:
            node = stack[-1]
            if id(node) in done:
                stack.pop()
                continue
            waiting = [
                index.producer[name]
                for name in reads(node)
                if name in index.producer and id(index.producer[name]) not in done
            ]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            done.add(id(node))
            ordered.append(node)
            stack.pop()
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(kept)


def _has_at_most(dims: tuple[int, ...] | None, elements: int) -> bool:
    return dims is not None and math.prod(dims) <= elements


def _pair(index: Graph, dequantise: onnx.NodeProto | None) -> onnx.NodeProto | None:
    """Return the QuantizeLinear node before an activation's DequantizeLinear node."""
    if dequantise is None or not _is(dequantise, "DequantizeLinear"):
        return None
    quantise = index.producer.get(dequantise.input[0])
    return quantise if quantise is not None and _is(quantise, "QuantizeLinear") else None


def _is(node: onnx.NodeProto, *ops: str) -> bool:
    return node.op_type in ops


def _replace_input(node: onnx.NodeProto, old: str, new: str) -> None:
    node.input[:] = [new if name == old else name for name in node.input]
