"""Fit the integer layers one after the other to the float model: weights first, then the bias.

The quantized model runs layer by layer on the samples, so that each layer sees the errors of those
before it (:mod:`.layer_walk`). Its weights are rounded to fit these inputs (:mod:`.rounding`). Its
bias then gives each output channel the mean that it has in the float model. Every node runs once.

Source of the bias: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
Correction", ICCV 2019, section 4.2.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

import numpy as np
import onnx

from tvmopt.quantize.channel_means import channel_means
from tvmopt.quantize.channel_scales import scale_channels
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.layer_walk import LayerWalk
from tvmopt.quantize.normalise import normalise
from tvmopt.quantize.quantizer import Quantizer
from tvmopt.quantize.ranges import Inputs, Ranges
from tvmopt.quantize.rounding import Rounding
from tvmopt.quantize.scheme import Scheme
from tvmopt.quantize.select import ANCHORS

_LEAST_BATCHES, _MOST_BATCHES = 8, 32
_ELEMENTS = _MOST_BATCHES * 3 * 224 * 224  # of inputs of the model: larger ones have more places
_BYTES = 2**30
_TENSORS_AT_ONCE = 3  # that later nodes read, each as large as the largest one


def fit_layers(
    model: onnx.ModelProto,
    ranges: Ranges,
    batches: Sequence[Inputs],
    scheme: Scheme | None = None,
    deadline: float = math.inf,
) -> Ranges:
    """Return ``ranges`` with the rounding and the bias of each integer layer.

    Args:
        model: A prepared float32 model, ``Prepared.model``; it is not modified.
        ranges: Ranges of its activations, with the channel scales to use.
        batches: Calibration data, one mapping from input names for each call of the model.
        scheme: Quantization scheme; by default :class:`Scheme`'s.
        deadline: Value of :func:`time.monotonic` after which no layer is begun; the layers that
            are left stay as they are.
    """
    scheme = scheme or Scheme()
    batches = spread_batches(model, batches)
    plain = dataclasses.replace(ranges, biases={}, roundings={})
    quantizer = Quantizer(model, plain, scheme)
    chosen = quantizer.integer_nodes()
    exact = normalise(model)
    if scheme.per_channel:
        scale_channels(exact, ranges.channel_scales, chosen)
    layers = [n for n in Graph(exact.graph).nodes if n.op_type in ANCHORS and n.name in chosen]
    walk = LayerWalk(quantizer(), batches, scheme.exact_pairs)
    means = channel_means(exact, layers, batches)
    biases: dict[str, tuple[float, ...]] = {}
    roundings: dict[str, Rounding] = {}
    floats = Graph(exact.graph)
    rng = np.random.default_rng(0)
    for layer in layers:
        if time.monotonic() >= deadline:
            break
        found = walk.fit(layer, floats, means.get(layer.name), rng)
        if found.rounding is not None:
            roundings[layer.name] = found.rounding
        if found.bias is not None:
            biases[layer.name] = tuple(map(float, found.bias.ravel()))
    return dataclasses.replace(ranges, biases=biases, roundings=roundings)


def spread_batches(model: onnx.ModelProto, batches: Sequence[Inputs]) -> list[Inputs]:
    """Return evenly spread batches: enough for means, and as many as memory holds.

    Of large inputs fewer are enough: a layer takes inputs from a limited number of places.
    """
    graph = Graph(model.graph)
    largest = max(
        (math.prod(graph.dims(name) or ()) for name in graph.producer), default=1
    )  # elements
    return spread(batches, max(1, _BYTES // (_TENSORS_AT_ONCE * 4 * largest)))


def spread(batches: Sequence[Inputs], most: int = _MOST_BATCHES) -> list[Inputs]:
    """Return at most ``most`` evenly spread batches: 32, or down to 8 where inputs are large."""
    elements = sum(array.size for array in batches[0].values())
    enough = max(_LEAST_BATCHES, min(_MOST_BATCHES, _ELEMENTS // max(1, elements)))
    most = min(most, enough)
    if len(batches) <= most:
        return list(batches)
    return [batches[at] for at in np.linspace(0, len(batches) - 1, most).round().astype(int)]
