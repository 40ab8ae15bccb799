"""Narrow the range of each activation where that lowers the error of the layers that read it.

The smallest and the largest value of the samples waste levels where they are rare. A narrower range
has smaller steps and clips the rare values. Each tensor takes the range with the least error of
the results of its layers. The mean error of an output channel does not count: the layer's bias
takes it up, see :mod:`.layerwise`. Only the layer itself runs, with exact weights.

Source: mean-square-error range estimation, Nagel et al., A White Paper on Neural Network
Quantization, 2021, section 3.1, with the error of the layer's result in place of the tensor's.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

import numpy as np
import onnx

from tvmopt.quantize.downstream import Arrays, Recording
from tvmopt.quantize.emulate import quantised_activation
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.normalise import normalise
from tvmopt.quantize.probe import ProbedLayer, Setting
from tvmopt.quantize.quantizer import Quantizer
from tvmopt.quantize.ranges import Inputs, Ranges
from tvmopt.quantize.scheme import Scheme
from tvmopt.quantize.select import ANCHORS

_FACTORS = (0.9, 0.8, 0.7, 0.6, 0.5)
_LEAST_BATCHES, _MOST_BATCHES = 3, 8
_ELEMENTS = 8 * 3 * 224 * 224  # of inputs of the model: larger ones have more places each
_BYTES = 2**29  # of recorded inputs of layers
_LEAST_GAIN = 0.02  # of the error; a smaller one may be chance


def narrow_ranges(
    model: onnx.ModelProto,
    ranges: Ranges,
    batches: Sequence[Inputs],
    scheme: Scheme | None = None,
    deadline: float = math.inf,
) -> Ranges:
    """Return ``ranges`` with narrower ranges of the tensors whose layers lose less by them.

    Ranges of channel-scaled inputs are narrowed alike.

    Args:
        model: A prepared float32 model, ``Prepared.model``; it is not modified.
        ranges: Ranges of its activations, with the channel scales to use.
        batches: Calibration data, one mapping from input names for each call of the model.
        scheme: Quantization scheme; by default :class:`Scheme`'s.
        deadline: Value of :func:`time.monotonic` after which no further range is narrowed.
    """
    scheme = scheme or Scheme()
    plain = dataclasses.replace(ranges, biases={}, roundings={})
    chosen = Quantizer(model, plain, scheme).integer_nodes()
    exact = normalise(model)
    graph = Graph(exact.graph)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.nodes:
        if node.op_type in ANCHORS and node.name in chosen:
            for name in dict.fromkeys(node.input[:2]):
                if name in plain.tensors and name not in graph.constants:
                    readers.setdefault(name, []).append(node)
    if not readers or time.monotonic() >= deadline:
        return ranges
    most = min(_batches_for(batches[0]), len(batches))
    spread = np.linspace(0, len(batches) - 1, most).round().astype(int)
    names = {name for nodes in readers.values() for node in nodes for name in node.input if name}
    recording = Recording(exact, sorted(names), [batches[at] for at in spread], _BYTES)
    tensors, scales = dict(ranges.tensors), dict(ranges.channel_scales)
    for name, nodes in readers.items():
        if time.monotonic() >= deadline:
            break
        if not plain.usable(name):
            continue
        setting = Setting(exact, graph, scheme, plain)
        layers = [_ReadingLayer(setting, node, name, recording.values) for node in nodes]
        scaled = scales.get(nodes[0].name)  # such an input has one reader
        low, high = plain.tensors[name] if scaled is None else (scaled.low, scaled.high)
        least = before = sum(layer.error(low, high) for layer in layers)
        for factor in _FACTORS:
            pair = factor * low, factor * high
            error = sum(layer.error(*pair) for layer in layers)
            if not error < least:
                break
            least = error
            if not error < (1 - _LEAST_GAIN) * before:
                continue
            if scaled is None:
                tensors[name] = pair
            else:
                scales[nodes[0].name] = dataclasses.replace(scaled, low=pair[0], high=pair[1])
    return dataclasses.replace(ranges, tensors=tensors, channel_scales=scales)


def _batches_for(inputs: Inputs) -> int:
    """Return how many batches tell the errors: fewer of large inputs."""
    elements = sum(array.size for array in inputs.values())
    return max(_LEAST_BATCHES, min(_MOST_BATCHES, round(_ELEMENTS / max(1, elements))))


class _ReadingLayer:
    """A layer with exact weights that reads one tensor in 8 bits.

    Args:
        setting: The model.
        node: The layer.
        name: The tensor.
        recorded: Values of the float model on some batches.
    """

    def __init__(
        self, setting: Setting, node: onnx.NodeProto, name: str, recorded: Sequence[Arrays]
    ) -> None:
        self._scheme, self._name, self._recorded = setting.scheme, name, recorded
        scales = setting.ranges.channel_scales.get(node.name) if setting.ranges else None
        self._factors = scales.along(recorded[0][name].ndim) if scales else np.ones(1, np.float32)
        self._axis = 1 if node.op_type in ("Conv", "ConvTranspose") else -1
        self._layer = ProbedLayer(setting, node, recorded[0])
        self._exact = [self._layer(values, "float32") for values in recorded]
        self._power = sum(float(np.vdot(one, one)) for one in self._exact)

    def error(self, low: float, high: float) -> float:
        """Return the relative error power of the result, less the mean of each output channel.

        Args:
            low: Smallest value to represent, of the tensor over its channels' factors if any.
            high: Largest value to represent.
        """
        if not math.isfinite(self._power) or self._power == 0:
            return 0.0
        power, count, sums = 0.0, 0, np.zeros(1)
        for values, exact in zip(self._recorded, self._exact, strict=True):
            value = values[self._name] / self._factors
            rounded = quantised_activation(value, low, high, self._scheme) * self._factors
            found = self._layer({**values, self._name: rounded}, "float32")
            by_channel = np.moveaxis(found - exact, self._axis, -1)
            rows = by_channel.reshape(-1, by_channel.shape[-1])
            power += float(np.vdot(rows, rows))
            sums = sums + rows.sum(axis=0, dtype=np.float64)
            count += len(rows)
        return (power - float(sums @ sums) / count) / self._power
