"""Layer table: the anchor operators of a prepared model in topological order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import onnx

from tvmopt.device.dtypes import DTYPES
from tvmopt.frontend.ml_layers import ML_ANCHORS, ml_bytes, ml_flops, ml_weight
from tvmopt.frontend.shapes import declared_dims

ANCHORS = (
    "Conv", "ConvTranspose", "MatMul", "MatMulNBits", "Gemm", "LSTM", "GRU", "RNN", "Einsum",
    *ML_ANCHORS,
)  # fmt: skip
_DTYPES = {row.onnx: row.name for row in DTYPES.values() if row.onnx}


@dataclasses.dataclass(frozen=True)
class Layer:
    """One anchor operator.

    Attributes:
        index: Index among the anchors, from 0.
        name: Name of the ONNX node.
        op: ONNX operator type.
        shape: Output shape as text, ``"1x64x112x112"``; empty when unknown.
        weight: Weight shape as text; empty when both operands are activations.
        flops: FLOPs of one run; None when a shape is unknown.
        bytes: Bytes of input, weight and output; None when a shape is unknown.
        dtype: Compute dtype.
        input_dtype: dtype of the stored input.
        output_dtype: dtype of the stored output.
        layout: Layout of the activation, ``"NCHW"`` for a convolution in ONNX.
        skipped: Whether conversion skipped this layer, partly or entirely.
        reason: Reason for skipping.
    """

    index: int
    name: str
    op: str
    shape: str
    weight: str
    flops: int | None
    bytes: int | None
    dtype: str
    input_dtype: str
    output_dtype: str
    layout: str
    skipped: bool = False
    reason: str = ""


def layer_table(model: onnx.ModelProto) -> list[Layer]:
    """Return the anchors of a prepared model, including those in branches of an If."""
    shapes: dict[str, list[int] | None] = {i.name: list(i.dims) for i in model.graph.initializer}
    dtypes = {i.name: i.data_type for i in model.graph.initializer}
    weights = set(shapes)
    graphs = list(_graphs(model.graph))
    for sub in graphs[1:]:
        shapes.update((i.name, list(i.dims)) for i in sub.initializer)
        dtypes.update((i.name, i.data_type) for i in sub.initializer)
        weights.update(i.name for i in sub.initializer)
    for value in [v for g in graphs for v in (*g.value_info, *g.input, *g.output)]:
        dims = declared_dims(value)
        static = dims is not None and all(isinstance(d, int) for d in dims)
        shapes[value.name] = [int(d) for d in dims] if dims is not None and static else None
        dtypes[value.name] = value.type.tensor_type.elem_type
    layers: list[Layer] = []
    for node in _nodes(model.graph):
        if node.op_type not in ANCHORS:
            continue
        result = _result(node)
        out = shapes.get(result)
        layers.append(
            Layer(
                index=len(layers),
                name=node.name or node.output[0],
                op=node.op_type,
                shape=_text(out),
                weight=_text(_weight(node, weights, shapes)),
                flops=_flops(node, out, shapes),
                bytes=_bytes(node, shapes, dtypes),
                dtype=_DTYPES.get(dtypes.get(result, 0), ""),
                input_dtype=_DTYPES.get(dtypes.get(node.input[0], 0), ""),
                output_dtype=_DTYPES.get(dtypes.get(result, 0), ""),
                layout=_layout(node, out),
            )
        )
    return layers


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for sub in _subgraphs(node):
            yield from _graphs(sub)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        for sub in _subgraphs(node):
            yield from _nodes(sub)
        yield node


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.HasField("g") else attribute.graphs


def _result(node: onnx.NodeProto) -> str:
    """Return the output of the layer's matmul: a classifier's scores, not its labels."""
    return node.output[-1] if node.op_type in ML_ANCHORS else node.output[0]


def _weight(
    node: onnx.NodeProto, weights: set[str], shapes: dict[str, list[int] | None]
) -> list[int] | None:
    """Return the shape of the weight; None where both operands are activations."""
    if node.op_type in ML_ANCHORS:
        first = shapes.get(node.input[0])
        return ml_weight(node, first[-1]) if first else None
    given = len(node.input) > 1 and node.input[1] in weights
    return shapes.get(node.input[1]) if given else None


def _flops(
    node: onnx.NodeProto, out: list[int] | None, shapes: dict[str, list[int] | None]
) -> int | None:
    if node.op_type in ML_ANCHORS:
        rows = shapes.get(node.input[0])
        return ml_flops(node, rows[0] if len(rows) > 1 else 1) if rows else None
    if out is None or len(node.input) < 2:
        return None
    first, second = (shapes.get(name) for name in node.input[:2])
    if first is None or second is None:
        return None
    if node.op_type == "Conv":
        return 2 * math.prod(out) * math.prod(second[1:])
    if node.op_type == "ConvTranspose":
        return 2 * math.prod(first) * math.prod(second[1:])
    if node.op_type in ("MatMul", "MatMulNBits"):
        return 2 * math.prod(out) * first[-1]
    if node.op_type == "Gemm":
        trans_a = any(a.name == "transA" and a.i for a in node.attribute)
        return 2 * math.prod(out) * (first[0] if trans_a else first[-1])
    return None


def _bytes(
    node: onnx.NodeProto, shapes: dict[str, list[int] | None], dtypes: dict[str, int]
) -> int | None:
    total = ml_bytes(node) if node.op_type in ML_ANCHORS else 0
    for name in [*node.input[:2], _result(node)]:
        shape, dtype = shapes.get(name), dtypes.get(name, 0)
        if shape is None or dtype not in _DTYPES:
            return None
        total += math.prod(shape) * onnx.helper.tensor_dtype_to_np_dtype(dtype).itemsize
    return total


def _layout(node: onnx.NodeProto, out: list[int] | None) -> str:
    if node.op_type in ("Conv", "ConvTranspose") and out is not None:
        return {3: "NCW", 4: "NCHW", 5: "NCDHW"}.get(len(out), "")
    return ""


def _text(shape: list[int] | None) -> str:
    return "x".join(map(str, shape)) if shape else ""
