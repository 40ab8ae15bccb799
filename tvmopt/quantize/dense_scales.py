"""Scale the channels of a dense convolution's input where that lowers the error of its result.

One scale serves all channels of an input in 8 bits, and small channels then have few levels. With a
factor for each channel, which the weights undo, small channels are larger, and so are the
differences between the weights of an output channel, which has one scale. The factors weigh one
against the other. Each layer takes the factors with the least error of its result, or none.

Source: Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
Language Models", ICML 2023; with equal weights it is cross-layer equalisation: Nagel et al.,
"Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from tvmopt.quantize.channel_scales import ChannelExtremes, ChannelScales, dense_layers
from tvmopt.quantize.downstream import Recording
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.normalise import normalise
from tvmopt.quantize.probe import ProbedLayer, Setting
from tvmopt.quantize.ranges import Inputs, Ranges
from tvmopt.quantize.scheme import Scheme

_MIGRATIONS = (0.5, 0.75)  # exponents of the input's range; the weight's has the rest
_SMALLEST = 1 / 256  # factor, relative to the largest one
_BATCHES = 2
_BYTES = 2**29  # of recorded inputs
_LEAST_GAIN = 0.1  # of the error power; a smaller one may be chance


def dense_scales(
    model: onnx.ModelProto,
    ranges: Ranges,
    extremes: ChannelExtremes,
    batches: Sequence[Inputs],
    scheme: Scheme,
) -> dict[str, ChannelScales]:
    """Return scales of the dense convolutions that lose less with them, by node name.

    Args:
        model: A prepared float32 model, ``Prepared.model``; it is not modified.
        ranges: Ranges of its activations.
        extremes: Extremes of the channels of the inputs.
        batches: Calibration data; two of them are used.
        scheme: Quantization scheme.
    """
    exact = normalise(model)
    graph = Graph(exact.graph)
    layers = [n for n in dense_layers(graph) if n.input[0] in extremes.lows]
    if not layers or not scheme.per_channel:
        return {}
    names = sorted({name for node in layers for name in node.input if name})
    spread = np.linspace(0, len(batches) - 1, min(_BATCHES, len(batches))).round().astype(int)
    recorded = Recording(exact, names, [batches[at] for at in spread], _BYTES).values
    found = {}
    for node in layers:
        if not ranges.usable(node.input[0]):
            continue
        low, high = extremes.lows[node.input[0]], extremes.highs[node.input[0]]
        candidates = [
            migrated(low, high, graph.array(node.input[1]), exponent) for exponent in _MIGRATIONS
        ]

        def error(scales: ChannelScales | None, node: onnx.NodeProto = node) -> float:
            own = {} if scales is None else {node.name: scales}
            setting = Setting(exact, graph, scheme, dataclasses.replace(ranges, channel_scales=own))
            layer = ProbedLayer(setting, node, recorded[0])
            return sum(layer.own_errors(values, ["int8"])["int8"] for values in recorded)

        errors = {at: error(one) for at, one in enumerate(candidates) if one is not None}
        best = min(errors, key=lambda at: errors[at], default=None)
        if best is not None and errors[best] < (1 - _LEAST_GAIN) * error(None):
            chosen = candidates[best]
            assert chosen is not None
            found[node.name] = chosen
    return found


def with_extremes(
    model: onnx.ModelProto, scales: Mapping[str, ChannelScales], extremes: ChannelExtremes
) -> dict[str, ChannelScales]:
    """Return scales whose ranges hold all extremes, with the same factors.

    Args:
        model: A prepared float32 model.
        scales: Scales by name of the convolution.
        extremes: Extremes of the channels of the inputs.
    """
    read = {n.name: n.input[0] for n in dense_layers(Graph(normalise(model).graph))}
    found = {}
    for name, one in scales.items():
        factors = np.array(one.factors)
        low = float((extremes.lows[read[name]] / factors).min())
        high = float((extremes.highs[read[name]] / factors).max())
        found[name] = dataclasses.replace(one, low=min(one.low, low), high=max(one.high, high))
    return found


def migrated(
    low: np.ndarray, high: np.ndarray, weight: np.ndarray, exponent: float
) -> ChannelScales | None:
    """Return factors ``range ** exponent / largest weight ** (1 - exponent)`` for each channel.

    Args:
        low: Smallest value of each channel.
        high: Largest value of each channel.
        weight: (outputs, channels, ...).
        exponent: From 0 to 1.

    Returns:
        None where there is no finite range.
    """
    low, high = low.clip(max=0).astype(np.float64), high.clip(min=0).astype(np.float64)
    least, most = float(low.min()), float(high.max())
    if not 0 < most - least < np.inf:
        return None
    zero = -least / (most - least)  # place of the zero point in the range
    spans = np.maximum(_over(-low, zero), _over(high, 1 - zero))
    largest = np.abs(weight).max(axis=(0, *range(2, weight.ndim))).astype(np.float64)
    used = (spans > 0) & (largest > 0)
    if not used.any():
        return None
    factors = np.ones(len(spans))
    factors[used] = spans[used] ** exponent / largest[used] ** (1 - exponent)
    factors = np.where(used, np.maximum(factors / factors[used].max(), _SMALLEST), 1.0)
    factors = factors.astype(np.float32).astype(np.float64)
    span = float((spans / factors).max())
    return ChannelScales(tuple(map(float, factors)), -zero * span, (1 - zero) * span)


def _over(values: np.ndarray, part: float) -> np.ndarray:
    """Return ``values / part``; 0 where the part is, for no value is on that side of zero."""
    return values / part if part else np.zeros_like(values)
