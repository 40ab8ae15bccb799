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
from tvmopt.quantize.channel_means import channel_means
from tvmopt.quantize.channel_scales import scale_channels
from tvmopt.quantize.emulate import cast_layers
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.layer_walk import LayerWalk
from tvmopt.quantize.layerwise import spread_batches
from tvmopt.quantize.normalise import normalise
from tvmopt.quantize.quantizer import Quantizer
from tvmopt.quantize.ranges import Inputs, Ranges
from tvmopt.quantize.scheme import Scheme
from tvmopt.quantize.select import ANCHORS


class MixedBiases:
    """Correct the biases of one model; call it for each choice of dtypes.

    Args:
        model: A prepared float32 model, ``Prepared.model``; it is not modified.
        ranges: Ranges of its activations; roundings and channel scales stay as they are.
        batches: Calibration data, one mapping from input names for each call of the model.
        scheme: Quantization scheme; by default :class:`Scheme`'s.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        ranges: Ranges,
        batches: Sequence[Inputs],
        scheme: Scheme | None = None,
    ) -> None:
        self._ranges, self._scheme = ranges, scheme or Scheme()
        self._batches = spread_batches(model, batches)
        plain = dataclasses.replace(ranges, biases={}, half_biases={})
        self._quantizer = Quantizer(model, plain, self._scheme)
        self._exact = normalise(model)
        layers = [node for node in Graph(self._exact.graph).nodes if node.op_type in ANCHORS]
        self._means = channel_means(self._exact, layers, self._batches)

    def __call__(self, by_name: Mapping[str, str]) -> Ranges:
        """Return the ranges with ``biases`` and ``half_biases`` for the dtypes ``by_name``.

        Args:
            by_name: dtype of each layer that some dtype can convert, by node name.
        """
        exclude = [name for name, dtype in by_name.items() if dtype != "int8"]
        chosen = self._quantizer.integer_nodes(exclude)
        mixed = self._quantizer(exclude)
        halves = {name: dtype for name, dtype in by_name.items() if dtype in HALF_FLOATS}
        for dtype in sorted(set(halves.values())):
            mixed = cast_layers(mixed, dtype, {name for name, d in halves.items() if d == dtype})
        exact = onnx.ModelProto()
        exact.CopyFrom(self._exact)
        if self._scheme.per_channel:
            scale_channels(exact, self._ranges.channel_scales, chosen)
        floats, walk = Graph(exact.graph), LayerWalk(mixed, self._batches)
        found: dict[str, tuple[float, ...]] = {}
        for layer in floats.nodes:
            if layer.op_type not in ANCHORS or not (layer.name in chosen or layer.name in halves):
                continue
            bias = walk.move_bias(layer, floats, self._means.get(layer.name))
            if bias is not None:
                found[layer.name] = tuple(map(float, bias.ravel()))
        return with_biases(self._ranges, found, by_name)


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
