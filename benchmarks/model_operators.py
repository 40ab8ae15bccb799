"""Extract the convolutions and matmuls of an ONNX model as benchmark operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import helper

from benchmarks.operators import Convolution, MatMul, Operator


def model_operators(model: onnx.ModelProto) -> tuple[list[tuple[str, Operator]], list[str]]:
    """Return the distinct convolutions and matmuls of a model, with their kinds.

    Args:
        model: A model with static shapes, folded by :func:`tvmopt.frontend.prepare`.

    Returns:
        Pairs of kind and operator, and one message per layer that is not supported.
    """
    graph = model.graph
    shapes: dict[str, tuple[int, ...]] = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        if 0 not in dims:
            shapes[value.name] = dims
    weights = {tensor.name for tensor in graph.initializer}
    rows: dict[Operator, str] = {}
    skipped: list[str] = []
    for node in graph.node:
        if node.op_type not in ("Conv", "ConvTranspose", "MatMul", "Gemm"):
            continue
        try:
            found = _operator(node, shapes, weights)
        except (KeyError, ValueError) as error:
            reason = " ".join(map(str, error.args))
            skipped.append(f"{node.op_type} {node.name}: not supported, {reason}")
            continue
        kind = "matmul"
        if isinstance(found, Convolution):
            kind = "rest" if found.transposed else "depthwise" if found.depthwise else "conv"
        rows[found] = kind
    return [(kind, op) for op, kind in rows.items()], skipped


def _operator(
    node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]], weights: set[str]
) -> Convolution | MatMul:
    for name in node.input[:2]:
        if name not in shapes:
            raise ValueError(f"the shape of {name!r} is not known")
    a, b = (shapes[name] for name in node.input[:2])
    attributes = {x.name: helper.get_attribute_value(x) for x in node.attribute}
    if "Conv" in node.op_type:
        return _convolution(a, b, attributes, node.op_type == "ConvTranspose")
    constant = node.input[1] in weights
    if node.op_type == "Gemm":
        m, k = a[::-1] if attributes.get("transA") else a
        n = b[0] if attributes.get("transB") else b[1]
        return MatMul(m, k, n, constant=constant, bias=len(node.input) > 2)
    a, b = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    if math.prod(b[:-2]) == 1:
        return MatMul(math.prod(a[:-1]), a[-1], b[-1], constant=constant)
    batch = math.prod(np.broadcast_shapes(a[:-2], b[:-2]))
    return MatMul(a[-2], a[-1], b[-1], batch=batch, constant=constant)


def _convolution(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], transposed: bool
) -> Convolution:
    axes = len(x) - 2
    if axes not in (1, 2):
        raise ValueError(f"it has {axes} spatial axes")
    lead = (1,) * (2 - axes)  # a 1-D convolution becomes a 2-D one of height 1
    size, kernel = (*lead, *x[2:]), (*lead, *w[2:])
    strides = (*lead, *attributes.get("strides", (1,) * axes))
    dilations = (*lead, *attributes.get("dilations", (1,) * axes))
    given = tuple(attributes.get("pads", (0,) * 2 * axes))
    none = (0,) * (2 - axes)
    pads = (*none, *given[:axes], *none, *given[axes:])
    groups = attributes.get("group", 1)
    auto = attributes.get("auto_pad", b"NOTSET").decode()
    if transposed and (
        groups != 1 or set(dilations) != {1} or auto != "NOTSET"
        or any(attributes.get("output_padding", ())) or "output_shape" in attributes
    ):  # fmt: skip
        raise ValueError("a transposed convolution must have no groups, dilation, output_padding")
    if auto.startswith("SAME"):
        total = [
            max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
            for n, s, k, d in zip(size, strides, kernel, dilations, strict=True)
        ]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = (*small, *large) if auto == "SAME_UPPER" else (*large, *small)
    filters = w[1] * groups if transposed else w[0]
    return Convolution(
        x[1], filters, size, kernel, strides, pads, dilations, groups, transposed, x[0]
    )
