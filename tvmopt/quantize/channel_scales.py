"""Scale each channel of a convolution's input, so that more channels fill the 8-bit range.

Each channel of the input has a factor, which the weights undo. One zero point serves all channels.
A depthwise convolution does not add its channels up, so its channels may fill the whole range.
Factors of a dense convolution are chosen in :mod:`.dense_scales`.

before -> after: ``y = Conv(x, w, b)`` -> ``y = Conv(x * (1 / s), w * s, b)``, s one factor for each
channel, at most 1; ``x * (1 / s)`` is quantized with one scale.

The multiplication fuses into the operator that makes ``x``, whose requantize takes one factor for
each channel already. Int8 weights of a depthwise convolution do not change, for they have one scale
for each output channel.

Source: per-channel activations of NNCF; Nagel et al., A White Paper on Neural Network Quantization,
2021, section 3.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvmopt.frontend.operator_sets import is_default, opset
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.graph import Graph, attributes
from tvmopt.quantize.normalise import normalise, unused_name
from tvmopt.quantize.select import JOINING, source

# A channel whose values are below one step of the largest channel's is 0 without scales. Data of
# calibration do not tell its range well enough for a smaller factor.
_SMALLEST = 1 / 256
_ZERO_POINTS = np.linspace(0, 1, 52)
_REDUCED_BY_INPUT = 18  # opset from which on ReduceMin and ReduceMax take axes as an input


@dataclasses.dataclass(frozen=True)
class ChannelScales:
    """Factors for the channels of a tensor, and the range of the scaled tensor.

    Attributes:
        factors: The factor s for each channel, in (0, 1]; the tensor is divided by it.
        low: Smallest value of the scaled tensor to represent.
        high: Largest value of the scaled tensor to represent.
    """

    factors: tuple[float, ...]
    low: float
    high: float

    def along(self, rank: int) -> np.ndarray:
        """Return the factors, float32, of shape (1, C, 1, ...) with ``rank`` axes."""
        return np.array(self.factors, np.float32).reshape(1, -1, *[1] * (rank - 2))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dictionary for :meth:`from_dict`."""
        return {"factors": list(self.factors), "low": self.low, "high": self.high}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ChannelScales:
        """Rebuild scales from :meth:`to_dict`."""
        return cls(tuple(data["factors"]), data["low"], data["high"])


@dataclasses.dataclass(frozen=True)
class ChannelExtremes:
    """Smallest and largest value of each channel, by tensor, over the batches so far."""

    lows: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    highs: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


def collect_channel_scales(
    model: onnx.ModelProto,
    batches: Iterable[Mapping[str, np.ndarray]],
    extremes: ChannelExtremes | None = None,
) -> dict[str, ChannelScales]:
    """Run the float model on calibration data and choose scales of depthwise convolutions, by name.

    Args:
        model: A prepared float32 model, ``Prepared.model``; it is not modified.
        batches: Inputs by name, one mapping for each call of the model.
        extremes: Extremes on other batches, which count, too; the extremes of ``batches`` are
            added, for the inputs of dense convolutions as well.
    """
    extremes = extremes or ChannelExtremes()
    normalised = normalise(model)
    graph = Graph(normalised.graph)
    names = [node.input[0] for node in (*scalable_layers(graph), *dense_layers(graph))]
    if not names:
        return {}
    _add_extremes(extremes, normalised, names, graph, batches)
    found = {}
    for node in scalable_layers(graph):
        low, high = extremes.lows[node.input[0]], extremes.highs[node.input[0]]
        scales = _scales(low, high, graph.array(node.input[1]))
        if scales is not None:
            found[node.name] = scales
    return found


def scalable_layers(graph: Graph) -> list[onnx.NodeProto]:
    """Return depthwise convolutions whose input no other node reads and no moving node makes."""
    return [n for n in graph.nodes if _is_scalable(graph, n) and _groups(n) > 1]


def dense_layers(graph: Graph) -> list[onnx.NodeProto]:
    """Return convolutions of one group whose input no other node reads and no moving node makes."""
    return [n for n in graph.nodes if _is_scalable(graph, n) and _groups(n) == 1]


def weight_factors(node: onnx.NodeProto, scales: ChannelScales, weight: np.ndarray) -> np.ndarray:
    """Return the factors of a convolution's weight, float32, of a shape that broadcasts to it."""
    factors = scales.along(weight.ndim)
    if _groups(node) == 1:
        return factors
    repeats = len(weight) // factors.size
    return np.repeat(factors.ravel(), repeats).reshape(-1, *[1] * (weight.ndim - 1))


def scale_channels(
    model: onnx.ModelProto, scales: Mapping[str, ChannelScales], layers: Collection[str]
) -> dict[str, tuple[float, float]]:
    """Scale inputs and weights of convolutions in place.

    Args:
        model: A normalised float model.
        scales: Scales by name of the convolution.
        layers: Names of the convolutions to change, among others.

    Returns:
        The range of each scaled tensor, by its name.
    """
    graph = model.graph
    index = Graph(graph)
    taken = {*index.producer, *index.constants, *index.inputs}
    ranges: dict[str, tuple[float, float]] = {}
    nodes = []
    for node in graph.node:
        if node.name in layers and node.name in scales:
            found = scales[node.name]
            x, w = node.input[0], node.input[1]
            weight = index.array(w)
            scaled = unused_name(f"{x}.scaled", taken)
            inverse = unused_name(f"{x}.scales", taken)
            factors = found.along(weight.ndim)
            graph.initializer.append(numpy_helper.from_array(1 / factors, inverse))
            scaled_weight = weight * weight_factors(node, found, weight)
            index.constants[w].CopyFrom(numpy_helper.from_array(scaled_weight, w))
            nodes.append(helper.make_node("Mul", [x, inverse], [scaled], name=scaled))
            dims = index.dims(x)
            graph.value_info.append(
                helper.make_tensor_value_info(scaled, onnx.TensorProto.FLOAT, dims)
            )
            node.input[0] = scaled
            ranges[scaled] = found.low, found.high
        nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del graph.node[:]
    graph.node.extend(nodes)
    return ranges


def _is_scalable(graph: Graph, node: onnx.NodeProto) -> bool:
    if node.op_type != "Conv" or not is_default(node) or node.input[1] not in graph.constants:
        return False
    x = node.input[0]
    dims, groups = graph.dims(x), _groups(node)
    if dims is None or groups not in (1, dims[1]) or dims[1] < 2:
        return False
    if not graph.is_float(node.input[1]):
        return False
    if len(graph.consumers[x]) > 1 or x in graph.outputs:
        return False
    made = source(graph, x)
    return made is not None and made.op_type not in JOINING


def _groups(node: onnx.NodeProto) -> int:
    return int(attributes(node).get("group", 1))


def _add_extremes(
    extremes: ChannelExtremes,
    model: onnx.ModelProto,
    names: list[str],
    graph: Graph,
    batches: Iterable[Mapping[str, np.ndarray]],
) -> None:
    """Add the extremes of each channel of some tensors on some batches."""
    reduced = onnx.ModelProto()
    reduced.CopyFrom(model)
    results = []
    for name in names:
        rank = len(graph.dims(name) or ())
        for op in ("ReduceMin", "ReduceMax"):
            results.append(f"{name}.{op}")
            _reduce(reduced, op, name, results[-1], [0, *range(2, rank)])
    session = new_session(reduced)
    lows, highs = extremes.lows, extremes.highs
    for inputs in batches:
        values = session.run(results, dict(inputs))
        for at, name in enumerate(names):
            low, high = values[2 * at], values[2 * at + 1]
            lows[name] = np.minimum(lows.get(name, low), low)
            highs[name] = np.maximum(highs.get(name, high), high)


def _reduce(model: onnx.ModelProto, op: str, name: str, result: str, axes: list[int]) -> None:
    if opset(model) < _REDUCED_BY_INPUT:
        node = helper.make_node(op, [name], [result], name=result, keepdims=0, axes=axes)
    else:
        along = f"{result}.axes"
        model.graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), along))
        node = helper.make_node(op, [name, along], [result], name=result, keepdims=0)
    model.graph.node.append(node)
    model.graph.output.append(onnx.ValueInfoProto(name=result))


def _scales(low: np.ndarray, high: np.ndarray, weight: np.ndarray) -> ChannelScales | None:
    """Return the scales with the least rounding noise of the result; None where there are none.

    The zero point is a fraction ``f`` of the range. A channel of range (low, high) then has a step
    in proportion to ``max(-low / f, high / (1 - f))``. Its noise is the square of the step times
    the energy of its weights.
    """
    if not np.isfinite(low).all() or not np.isfinite(high).all():
        return None
    energy = (weight.reshape(len(low), -1).astype(np.float64) ** 2).sum(axis=1)
    low, high = (np.where(energy > 0, side, 0.0) for side in (low.clip(max=0), high.clip(min=0)))
    energy = np.maximum(energy, np.finfo(np.float64).tiny)
    spans = {f: np.maximum(_over(-low, f), _over(high, 1 - f)) for f in map(float, _ZERO_POINTS)}
    at = min(spans, key=lambda f: float((energy * spans[f] ** 2).sum()))
    span = spans[at]
    largest = float(span.max())
    if not 0 < largest < np.inf:
        return None
    factors = np.where(span > 0, np.maximum(span / largest, _SMALLEST), 1).astype(np.float32)
    return ChannelScales(tuple(map(float, factors)), -at * largest, (1 - at) * largest)


def _over(values: np.ndarray, part: float) -> np.ndarray:
    """Return ``values / part``: infinite where a value is left of a part of 0."""
    return values / part if part else np.where(values > 0, np.inf, 0.0)
