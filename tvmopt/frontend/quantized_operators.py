"""Rewrite quantised operators to their float form between DequantizeLinear and QuantizeLinear.

before: ``y = QLinearConv(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias)``

after: ``y = QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), bias))``

The integer kernels match the second form. Both differ by one step at most: where a sum lies in the
middle between two steps, float rounding decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvmopt.frontend.operator_sets import DEFAULT_DOMAINS, is_default

_MICROSOFT = "com.microsoft"
_OPSET = 13  # from which on DequantizeLinear takes an axis


class _Rewriter:
    """Collects the nodes and constants of the new graph."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        self._arrays = {t.name: t for t in model.graph.initializer}
        self._names = {name for node in model.graph.node for name in (*node.input, *node.output)}
        self._names |= set(self._arrays) | {v.name for v in model.graph.input}
        self.nodes: list[onnx.NodeProto] = []

    def name(self, of: str) -> str:
        """Return a name that no value has."""
        number = 0
        while (found := f"{of}/{number}") in self._names:
            number += 1
        self._names.add(found)
        return found

    def add(self, op: str, inputs: Sequence[str], of: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        output = self.name(f"{of}/{op}")
        node = helper.make_node(op, list(inputs), [output], name=output, **attributes)
        self.nodes.append(node)
        return output

    def constant(self, of: str, array: np.ndarray) -> str:
        """Add a constant; return its name."""
        name = self.name(of)
        tensor = numpy_helper.from_array(array, name)
        self._graph.initializer.append(tensor)
        self._arrays[name] = tensor
        return name

    def array(self, name: str) -> np.ndarray | None:
        """Return a constant; None for a value that is computed."""
        tensor = self._arrays.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def dequantized(self, value: Sequence[str], of: str, axis: int | None = None) -> str:
        """Return the float form of a value, its scale and its zero point."""
        given = [name for name in value if name]
        scale = self.array(value[1])
        more = (
            {}
            if axis is None or scale is None or scale.ndim == 0 or scale.size == 1
            else {"axis": axis}
        )
        if scale is not None and scale.ndim == 1 and scale.size == 1:  # a scalar by its meaning
            given[1] = self.constant(f"{value[1]}/scalar", scale.reshape(()))
            zero = self.array(value[2]) if len(given) > 2 else None
            if zero is not None:
                given[2] = self.constant(f"{value[2]}/scalar", zero.reshape(()))
        return self.add("DequantizeLinear", given, of, **more)

    def quantized(self, value: str, scale: str, zero: str, node: onnx.NodeProto) -> None:
        """Add the node that gives the output of ``node``."""
        inputs = [value, scale, *([zero] if zero else [])]
        last = helper.make_node("QuantizeLinear", inputs, [node.output[0]], name=node.name)
        self.nodes.append(last)


def _attributes(node: onnx.NodeProto, *but: str) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name not in but}


def _bias(r: _Rewriter, node: onnx.NodeProto, bias: str, x_scale: str, w_scale: str) -> str:
    """Return the float form of an int32 bias, whose scale is the product of both operands' scales.

    Raises:
        ValueError: When bias or scales are not constant.
    """
    arrays = [array for name in (bias, x_scale, w_scale) if (array := r.array(name)) is not None]
    if len(arrays) < 3:
        raise ValueError(f"bias and scales of {node.op_type} {node.name!r} must be constant")
    values, left, right = arrays
    scaled = values.astype("float32") * (left.astype("float32") * right.astype("float32")).reshape(
        -1
    )
    return r.constant(f"{node.name}/bias", scaled.astype("float32").reshape(values.shape))


def _convolution(r: _Rewriter, node: onnx.NodeProto) -> None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = [*node.input, ""][:9]
    inputs = [
        r.dequantized((x, x_scale, x_zero), node.name),
        r.dequantized((w, w_scale, w_zero), node.name, axis=0),
    ]
    if bias:
        inputs.append(_bias(r, node, bias, x_scale, w_scale))
    r.quantized(r.add("Conv", inputs, node.name, **_attributes(node)), y_scale, y_zero, node)


def _matmul(r: _Rewriter, node: onnx.NodeProto) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.input
    inputs = [
        r.dequantized((a, a_scale, a_zero), node.name),
        r.dequantized((b, b_scale, b_zero), node.name, axis=1),
    ]
    r.quantized(r.add("MatMul", inputs, node.name), y_scale, y_zero, node)


def _gemm(r: _Rewriter, node: onnx.NodeProto) -> None:
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = [*node.input, "", ""][:9]
    axis = 0 if _attributes(node).get("transB") else 1
    inputs = [
        r.dequantized((a, a_scale, a_zero), node.name),
        r.dequantized((b, b_scale, b_zero), node.name, axis=axis),
    ]
    if c:
        inputs.append(_bias(r, node, c, a_scale, b_scale))
    y = r.add("Gemm", inputs, node.name, **_attributes(node))
    if y_scale:
        r.quantized(y, y_scale, y_zero, node)
    else:
        r.nodes.append(helper.make_node("Identity", [y], [node.output[0]], name=node.name))


def _binary(op: str) -> Callable[[_Rewriter, onnx.NodeProto], None]:
    def rewrite(r: _Rewriter, node: onnx.NodeProto) -> None:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = [*node.input, ""][:8]
        inputs = [
            r.dequantized((a, a_scale, a_zero), node.name),
            r.dequantized((b, b_scale, b_zero), node.name),
        ]
        r.quantized(r.add(op, inputs, node.name), y_scale, y_zero, node)

    return rewrite


def _unary(op: str, *dropped: str) -> Callable[[_Rewriter, onnx.NodeProto], None]:
    def rewrite(r: _Rewriter, node: onnx.NodeProto) -> None:
        x, x_scale, x_zero, y_scale, y_zero = [*node.input, ""][:5]
        if _attributes(node).get("channels_last"):
            raise ValueError(f"channels_last of {node.op_type} is not supported")
        value = r.dequantized((x, x_scale, x_zero), node.name)
        value = r.add(op, [value], node.name, **_attributes(node, "channels_last", *dropped))
        r.quantized(value, y_scale, y_zero, node)

    return rewrite


def _concat(r: _Rewriter, node: onnx.NodeProto) -> None:
    y_scale, y_zero, *values = node.input
    parts = [r.dequantized(values[at : at + 3], node.name) for at in range(0, len(values), 3)]
    r.quantized(r.add("Concat", parts, node.name, **_attributes(node)), y_scale, y_zero, node)


_REWRITES: dict[tuple[str, str], Callable[[_Rewriter, onnx.NodeProto], None]] = {
    ("", "QLinearConv"): _convolution,
    ("", "QLinearMatMul"): _matmul,
    (_MICROSOFT, "QGemm"): _gemm,
    (_MICROSOFT, "QLinearAdd"): _binary("Add"),
    (_MICROSOFT, "QLinearMul"): _binary("Mul"),
    (_MICROSOFT, "QLinearSigmoid"): _unary("Sigmoid"),
    (_MICROSOFT, "QLinearLeakyRelu"): _unary("LeakyRelu"),
    (_MICROSOFT, "QLinearGlobalAveragePool"): _unary("GlobalAveragePool"),
    (_MICROSOFT, "QLinearAveragePool"): _unary("AveragePool"),
    (_MICROSOFT, "QLinearSoftmax"): _unary("Softmax", "opset"),
    (_MICROSOFT, "QLinearConcat"): _concat,
}


def rewrite_quantized(model: onnx.ModelProto) -> None:
    """Rewrite the quantised operators of a model in place; one that cannot be stays.

    The importer then names it.
    """
    if not any((_domain(node), node.op_type) in _REWRITES for node in model.graph.node):
        return
    rewriter = _Rewriter(model)
    for node in model.graph.node:
        rewrite = _REWRITES.get((_domain(node), node.op_type))
        if rewrite is None:
            rewriter.nodes.append(node)
            continue
        kept = len(rewriter.nodes)
        try:
            rewrite(rewriter, node)
        except ValueError:
            del rewriter.nodes[kept:]
            rewriter.nodes.append(node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in rewriter.nodes]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for entry in model.opset_import:
        if entry.domain in DEFAULT_DOMAINS and entry.version < _OPSET:
            entry.version = _OPSET


def _domain(node: onnx.NodeProto) -> str:
    return "" if is_default(node) else node.domain
