"""Check whether a model can be quantized."""

from __future__ import annotations

import onnx

from tvmopt.errors import ConfigError
from tvmopt.quantize.select import ANCHORS

_QUANTISED = (
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul",
    "ConvInteger", "MatMulInteger",
)  # fmt: skip


def is_quantized(model: onnx.ModelProto) -> bool:
    """Return whether a model already has quantized or integer operators, including in branches."""
    return any(op in _QUANTISED for op in _operators(model.graph))


def check_float(model: onnx.ModelProto) -> None:
    """Check that a model is float32 and not quantized.

    Raises:
        ConfigError: When the model is quantized or 16-bit.
    """
    if is_quantized(model):
        raise ConfigError(
            "a model to quantise must be float32, but this one is quantised already; leave "
            "dtype as it is (float32) and its integer operators are kept"
        )
    weights = {i.name: i.data_type for i in model.graph.initializer}
    half = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    for node in model.graph.node:
        if node.op_type in ANCHORS and any(weights.get(name) in half for name in node.input):
            raise ConfigError(
                "a model to quantise must be float32, but the weights of "
                f"{node.name or node.output[0]!r} are 16-bit; give the float32 model"
            )


def _operators(graph: onnx.GraphProto) -> list[str]:
    found = []
    for node in graph.node:
        found.append(node.op_type)
        for attribute in node.attribute:
            for sub in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                found += _operators(sub)
    return found
