"""Rewrite a float model, with equal results, into the form that ONNX Runtime's quantizer needs.

before -> after:

1. operators of opset < 13 -> opset 13, which supports per-channel scales;
2. ``Gemm(x, w, c, alpha, beta)`` -> ``Gemm(x, alpha * w, beta * c)`` with one bias per column;
3. ``Pad(x, pads, 0.0)`` -> ``Pad(x, pads)``: the quantizer would quantize the zero;
4. weights or biases with two readers -> one copy per reader: the quantizer replaces a tensor for
   all readers, including excluded ones.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import numpy_helper, version_converter

from tvmopt.errors import ModelError
from tvmopt.frontend.inferred_shapes import with_onnx_shapes
from tvmopt.frontend.library_errors import ONNX_ERRORS
from tvmopt.frontend.operator_sets import opset
from tvmopt.quantize.graph import Graph, attributes, reads
from tvmopt.quantize.select import ANCHORS

_NEEDED_OPSET = 13


def normalise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a normalised copy of ``model`` with inferred types and shapes.

    Raises:
        ModelError: When the model cannot be converted to opset 13.
    """
    out = at_least_opset_13(model)
    _plain_gemms(out.graph)
    _plain_pads(out.graph)
    _own_weights(out.graph)
    return with_onnx_shapes(out)  # the quantizer skips tensors without a type


def at_least_opset_13(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with opset 13 or later; node names and tensor names do not change.

    Raises:
        ModelError: When ONNX's version converter fails.
    """
    if opset(model) >= _NEEDED_OPSET:
        out = onnx.ModelProto()
        out.CopyFrom(model)
        return out
    try:
        out = version_converter.convert_version(model, _NEEDED_OPSET)
    except ONNX_ERRORS as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"int8 and bfloat16 need a model of opset {_NEEDED_OPSET} or later, but this one has "
            f"opset {opset(model)} and cannot be converted: {reason}; export it anew"
        ) from error
    seen: set[str] = set()
    for node in out.graph.node:
        if not node.name or node.name in seen:
            node.name = next(filter(None, node.output), node.op_type)
        seen.add(node.name)
    _fold_constant_nodes(out.graph)
    return out


def _fold_constant_nodes(graph: onnx.GraphProto) -> None:
    # The converter emits attributes that became inputs as Constant nodes.
    kept = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type != "Constant" or value is None:
            kept.append(node)
            continue
        tensor = graph.initializer.add()
        tensor.CopyFrom(value)
        tensor.name = node.output[0]
    del graph.node[:]
    graph.node.extend(kept)


def _plain_gemms(graph: onnx.GraphProto) -> None:
    index = Graph(graph)
    for node in graph.node:
        if node.op_type != "Gemm" or node.input[1] not in index.constants:
            continue
        if not index.is_float(node.input[1]):
            continue
        attrs = attributes(node)
        weight = index.array(node.input[1])
        alpha = np.float32(attrs.get("alpha", 1.0))
        beta = np.float32(attrs.get("beta", 1.0))
        columns = weight.shape[0 if attrs.get("transB", 0) else 1]
        bias = node.input[2] if len(node.input) > 2 else ""
        if bias and bias not in index.constants:
            continue
        if alpha != 1:
            node.input[1] = _add(graph, f"{node.name}.weight", weight * alpha)
        if bias:
            value = index.array(bias)
            if value.ndim != 1 or value.size != columns or beta != 1:
                if value.size not in (1, columns) or any(d != 1 for d in value.shape[:-1]):
                    continue
                spread = np.broadcast_to(value.reshape(-1) * beta, (columns,))
                node.input[2] = _add(graph, f"{node.name}.bias", spread)
        plain = [a for a in node.attribute if a.name not in ("alpha", "beta")]
        del node.attribute[:]
        node.attribute.extend(plain)


def _plain_pads(graph: onnx.GraphProto) -> None:
    index = Graph(graph)
    for node in graph.node:
        if node.op_type == "Pad" and len(node.input) == 3 and node.input[2] in index.constants:
            value = index.array(node.input[2])
            if value.size == 1 and not value.any():
                del node.input[2:]


def _own_weights(graph: onnx.GraphProto) -> None:
    index = Graph(graph)
    readers = Counter(name for node in graph.node for name in reads(node))
    for node in graph.node:
        if node.op_type not in ANCHORS:
            continue
        for at, name in enumerate(node.input):
            if name in index.constants and index.is_float(name) and readers[name] > 1:
                copy = _add(graph, f"{node.name}.{at}", index.array(name))
                node.input[at] = copy
    used = {name for node in graph.node for name in reads(node)}
    used.update(o.name for o in graph.output)
    kept = [i for i in graph.initializer if i.name in used]
    if len(kept) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(kept)


def _add(graph: onnx.GraphProto, name: str, value: np.ndarray) -> str:
    """Add a constant under an unused name; return the name."""
    taken = {i.name for i in graph.initializer}
    taken.update(output for node in graph.node for output in node.output)
    name = unused_name(name, taken)
    tensor = numpy_helper.from_array(np.ascontiguousarray(value, dtype=np.float32), name)
    graph.initializer.append(tensor)
    return name


def unused_name(name: str, taken: set[str]) -> str:
    """Return ``name``, with underscores behind it until it is not in ``taken``; add it there."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
