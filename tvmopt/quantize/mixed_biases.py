"""Correct the biases of layers for the dtypes of all layers of a model.

Biases that were fitted with all layers in int8 also undo the errors of the layers before. Where
some of these layers have a 16-bit float, that error is gone, and the correction is an error itself.
So the model with its chosen dtypes runs layer by layer once more. Each bias, of int8 layers and of
layers in 16-bit floats, gives its output channels the means of the float model.

Source: as :mod:`.layerwise`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.quantize.channel_scales import scale_channels
from tvmopt.quantize.emulate import cast_layers
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.layerwise import LayerWalk, channel_means, spread_batches
from tvmopt.quantize.normalise import normalise
from tvmopt.quantize.quantizer import Quantizer
from tvmopt.quantize.ranges import Inputs, Ranges
from tvmopt.quantize.scheme import Scheme
from tvmopt.quantize.select import ANCHORS


def with_mixed_biases(
    model: onnx.ModelProto,
    ranges: Ranges,
    batches: Sequence[Inputs],
    by_name: Mapping[str, str],
    scheme: Scheme | None = None,
) -> Ranges:
    """Return ``ranges`` with ``biases`` and ``half_biases`` for the dtypes ``by_name``.

    Args:
        model: A prepared float32 model, ``Prepared.model``; it is not modified.
        ranges: Ranges of its activations; roundings and channel scales stay as they are.
        batches: Calibration data, one mapping from input names for each call of the model.
        by_name: dtype of each layer that some dtype can convert, by node name.
        scheme: Quantization scheme; by default :class:`Scheme`'s.
    """
    scheme = scheme or Scheme()
    batches = spread_batches(model, batches)
    plain = dataclasses.replace(ranges, biases={}, half_biases={})
    quantizer = Quantizer(model, plain, scheme)
    exclude = [name for name, dtype in by_name.items() if dtype != "int8"]
    chosen = quantizer.integer_nodes(exclude)
    mixed = quantizer(exclude)
    halves = {name: dtype for name, dtype in by_name.items() if dtype in HALF_FLOATS}
    for dtype in sorted(set(halves.values())):
        mixed = cast_layers(mixed, dtype, {name for name, d in halves.items() if d == dtype})
    exact = normalise(model)
    if scheme.per_channel:
        scale_channels(exact, ranges.channel_scales, chosen)
    floats = Graph(exact.graph)
    layers = [
        node for node in floats.nodes
        if node.op_type in ANCHORS and (node.name in chosen or node.name in halves)
    ]  # fmt: skip
    walk, means = LayerWalk(mixed, batches), channel_means(exact, layers, batches)
    found: dict[str, tuple[float, ...]] = {}
    for layer in layers:
        bias = walk.move_bias(layer, floats, means.get(layer.name))
        if bias is not None:
            found[layer.name] = tuple(map(float, bias.ravel()))
    return with_biases(ranges, found, by_name)


def with_biases(
    ranges: Ranges, biases: Mapping[str, tuple[float, ...]], by_name: Mapping[str, str]
) -> Ranges:
    """Return ``ranges`` with ``biases`` in place of the calibration's, where there are any.

    Args:
        ranges: Ranges of the activations.
        biases: Biases of layers in int8 and in 16-bit floats, by node name.
        by_name: dtype of each layer, by node name; a layer in float32 keeps its bias.
    """
    if not biases:
        return ranges
    integer = {name: values for name, values in biases.items() if by_name.get(name) == "int8"}
    halves = {name: v for name, v in biases.items() if by_name.get(name) in HALF_FLOATS}
    return dataclasses.replace(ranges, biases=integer, half_biases=halves)
