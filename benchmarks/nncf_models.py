"""Models that NNCF quantizes itself, and which of their layers run in integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx

from tvmopt.nncf_import import nncf_without_telemetry
from tvmopt.quantize.bias_correction import silent
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.normalise import normalise
from tvmopt.quantize.select import SHARING

#: Presets and bias corrections, ``(preset, whether the correction is the fast one)``.
PRESETS = tuple((preset, fast) for preset in ("mixed", "performance") for fast in (True, False))


def label(preset: str, is_fast: bool) -> str:
    """Return the name of a preset with its bias correction."""
    return f"NNCF {preset} {'fast' if is_fast else 'accurate'}"


def quantised_by_nncf(
    model: onnx.ModelProto, batches: Sequence[Mapping[str, np.ndarray]], preset: str, is_fast: bool
) -> onnx.ModelProto:
    """Return the QDQ model that NNCF writes, with weights in the whole range of int8."""
    with nncf_without_telemetry() as nncf, silent():
        from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters

        return nncf.quantize(
            normalise(model),
            nncf.Dataset([dict(inputs) for inputs in batches]),
            preset=nncf.QuantizationPreset(preset),
            subset_size=len(batches),
            fast_bias_correction=is_fast,
            advanced_parameters=AdvancedQuantizationParameters(
                overflow_fix=nncf.OverflowFix.DISABLE
            ),
        )


def integer_layers(quantised: onnx.ModelProto, names: Iterable[str]) -> list[str]:
    """Return the layers, of ``names``, whose operands are dequantized."""
    graph = Graph(quantised.graph)
    nodes = {node.name: node for node in graph.nodes}
    return [
        name
        for name in names
        if name in nodes and all(_is_dequantised(graph, x) for x in nodes[name].input[:2])
    ]


def _is_dequantised(graph: Graph, name: str) -> bool:
    """Return whether a tensor comes from DequantizeLinear, looking through data movement.

    NNCF quantizes before a Flatten, our quantizer after it too.
    """
    node = graph.producer.get(name)
    while node is not None and node.op_type in (*SHARING, "Relu", "Concat"):
        node = graph.producer.get(node.input[0])
    return node is not None and node.op_type == "DequantizeLinear"
