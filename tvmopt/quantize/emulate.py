"""Emulate low-precision layers in float32, to measure the effect on the outputs.

A layer in a 16-bit float rounds both operands (a convolution kernel keeps its sum), and accumulates
in float32, including the bias. That matches a converted layer up to the order of accumulation. Its
result is rounded too, because most results are stored. This file emulates int8 for a single layer,
with the scales of ONNX Runtime's quantizer; for several layers, quantize the model.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
from onnx import numpy_helper

from tvmopt.device import dtypes
from tvmopt.quantize.exact_pairs import pair_factors, within_pairs
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.normalise import at_least_opset_13
from tvmopt.quantize.rounding import Rounding
from tvmopt.quantize.scheme import Scheme
from tvmopt.transform.precision.casting import largest
from tvmopt.transform.precision.rounding import round_keeping_sums

CASTABLE = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum")


def round_to(value: np.ndarray, dtype: str) -> np.ndarray:
    """Round to the nearest values of ``dtype``, a 16-bit float; return float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return value.astype(dtypes.dtype(dtype).numpy).astype(np.float32)


def round_weight(value: np.ndarray, node: onnx.NodeProto, dtype: str) -> np.ndarray:
    """Round a layer's weight as :func:`~tvmopt.transform.to_precision` does; return float32."""
    if node.op_type != "Conv" or value.ndim < 3 or value[0, 0].size < 2:
        return round_to(value, dtype)
    if not np.abs(value).max(initial=0.0) < largest(dtype):
        return round_to(value, dtype)
    return round_keeping_sums(value, dtype).astype(np.float32)


def quantised_activation(value: np.ndarray, low: float, high: float, scheme: Scheme) -> np.ndarray:
    """Return ``DQ(Q(value))`` with the scale of the range ``low`` to ``high``."""
    from onnxruntime.quantization.quant_utils import compute_scale_zp, get_qmin_qmax_for_qType

    kind = onnx.TensorProto.UINT8 if scheme.unsigned else onnx.TensorProto.INT8
    row = dtypes.dtype("uint8" if scheme.unsigned else "int8")
    qmin, qmax = get_qmin_qmax_for_qType(kind, symmetric=scheme.symmetric)
    zero, scale = compute_scale_zp(np.float32(low), np.float32(high), qmin, qmax, scheme.symmetric)
    zero, scale = float(zero), np.float32(scale)
    steps = np.rint(value / scale)
    np.clip(steps, row.lowest - zero, row.highest - zero, out=steps)
    return steps * scale


def quantised_weight(
    value: np.ndarray,
    axis: int | None,
    rounding: Rounding | None = None,
    along: int | None = None,
) -> np.ndarray:
    """Return ``DQ(Q(value))`` with symmetric 8-bit scales along ``axis``; None: per tensor.

    Args:
        value: The weight.
        axis: Axis of the scales.
        rounding: How the weight is rounded; None: to nearest.
        along: Axis of K where pairs of products must stay within int16; None: they need not.
    """
    others = None if axis is None else tuple(i for i in range(value.ndim) if i != axis)
    largest = np.abs(value).max(axis=others, keepdims=True)
    scale = (largest / np.float32(127)).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = 1
    if axis is not None and along is not None:
        factors = pair_factors(value / scale, axis, along).astype(np.float32)
        scale = scale * factors.reshape([-1 if i == axis else 1 for i in range(value.ndim)])
    codes = np.clip(np.rint(value / scale), -127, 127)
    if along is not None:
        codes = within_pairs(codes, along).astype(np.float32)
    return (codes if rounding is None else rounding.codes(codes).astype(np.float32)) * scale


def weight_axis(node: onnx.NodeProto, scheme: Scheme) -> int | None:
    """Return the output-channel axis of a layer's weight; None for per-tensor scales."""
    if not scheme.per_channel:
        return None
    if node.op_type == "Gemm":
        return 0 if any(a.name == "transB" and a.i for a in node.attribute) else 1
    return 0 if node.op_type == "Conv" else 1


def cast_layers(model: onnx.ModelProto, dtype: str, layers: Collection[str]) -> onnx.ModelProto:
    """Return a copy in which the nodes ``layers`` (names) compute on values of ``dtype``.

    before -> after: ``y = Conv(x, w, b)`` -> ``y = round(Conv(round(x), round(w), b))``
    where ``round`` is ``Cast(Cast(_, dtype), float)``, applied once for a constant.

    Raises:
        ModelError: When the model cannot be converted to opset 13.
    """
    out = at_least_opset_13(model)  # Cast supports all dtypes since opset 13
    graph = out.graph
    index = Graph(graph)
    rounded: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []

    def casts(name: str, result: str) -> list[onnx.NodeProto]:
        low = f"{result}.{dtype}"
        return [
            onnx.helper.make_node("Cast", [name], [low], low, to=dtypes.dtype(dtype).onnx),
            onnx.helper.make_node(
                "Cast", [low], [result], f"{result}.float32", to=onnx.TensorProto.FLOAT
            ),
        ]

    for node in graph.node:
        if node.name not in layers:
            nodes.append(node)
            continue
        for at, name in enumerate(node.input[:2]):
            if not name or not index.is_float(name):
                continue
            if name not in rounded:
                rounded[name] = f"{name}.as_{dtype}"
                if name in index.constants:
                    value = round_weight(index.array(name), node, dtype)
                    graph.initializer.append(numpy_helper.from_array(value, rounded[name]))
                else:
                    nodes += casts(name, rounded[name])
            node.input[at] = rounded[name]
        exact = node.output[0]
        node.output[0] = f"{exact}.exact"
        nodes += [node, *casts(node.output[0], exact)]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return out
