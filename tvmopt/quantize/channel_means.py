"""Mean of each output channel of the layers of a float model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx

from tvmopt.quantize.graph import Graph
from tvmopt.quantize.ranges import GroupedOutputs, Inputs


def channel_means(
    model: onnx.ModelProto, layers: Sequence[onnx.NodeProto], batches: Iterable[Inputs]
) -> Mapping[str, np.ndarray]:
    """Return the mean of each output channel of the layers with a bias, by node name.

    Args:
        model: The float model.
        layers: Its layers.
        batches: The samples.
    """
    graph = Graph(model.graph)
    by_output = {
        layer.output[0]: layer for layer in layers if constant_bias(graph, layer) is not None
    }
    run = GroupedOutputs(model, list(by_output))
    totals: dict[str, np.ndarray] = {}
    count = 0
    for inputs in batches:
        count += 1
        for output, value in run(inputs):
            layer = by_output[output]
            mean = mean_of([value], channel_axis(layer, value))
            totals[layer.name] = totals.get(layer.name, 0.0) + mean
    return {name: total / count for name, total in totals.items()}


def mean_of(results: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """Return the mean over all axes but ``axis`` and over all results, which have equal sizes."""
    others = tuple(i for i in range(results[0].ndim) if i != axis)
    return np.mean([result.mean(axis=others, dtype=np.float64) for result in results], axis=0)


def channel_axis(layer: onnx.NodeProto, result: np.ndarray) -> int:
    """Return the axis of the output channels of a layer's result."""
    return 1 if layer.op_type in ("Conv", "ConvTranspose") else result.ndim - 1


def constant_bias(graph: Graph, layer: onnx.NodeProto) -> np.ndarray | None:
    """Return the constant bias of a layer, one value for each output channel."""
    name = layer.input[2] if len(layer.input) > 2 else ""
    return graph.array(name).astype(np.float32) if name in graph.constants else None
