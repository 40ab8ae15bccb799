"""Quantize a float model with given ranges to Q and DQ nodes, with ONNX Runtime's quantizer.

ONNX Runtime's ``QDQQuantizer`` computes scales, zero points and integer weights.
:mod:`tvmopt.quantize.select` decides which nodes it quantizes, and :mod:`tvmopt.quantize.surgery`
cleans up the result.

before -> after: ``y = Conv(x, w, b); z = Relu(y)`` ->
``z = Relu(Conv(DQ(Q(x)), DQ(w8), DQ(b32)))``; ``z`` is quantized where an integer node reads it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import numpy_helper

from tvmopt.errors import ConfigError
from tvmopt.quantize.channel_scales import dense_layers, scalable_layers, scale_channels
from tvmopt.quantize.checks import check_float
from tvmopt.quantize.exact_pairs import k_axis, within_pairs
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.normalise import normalise
from tvmopt.quantize.ranges import Ranges
from tvmopt.quantize.scheme import Scheme
from tvmopt.quantize.select import (
    ANCHORS,
    JOINING,
    SHARING,
    data_inputs,
    integer_nodes,
    quantised_tensors,
)
from tvmopt.quantize.surgery import clean_up

if TYPE_CHECKING:
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    from tvmopt.quantize.remembered_weights import IntegerWeight

_INFERRED = "onnx.infer", "onnxruntime.quant"  # tells the quantizer that types are inferred


class Quantizer:
    """Quantize one model with one set of ranges; call it for each skip set.

    Args:
        model: A prepared float32 model, ``Prepared.model``; it is not modified.
        ranges: Ranges of its activations, see :func:`~tvmopt.quantize.ranges.collect_ranges`, with
            the corrected biases and the channel scales of the layers that run in integers.
        scheme: Quantization scheme.

    Raises:
        ConfigError: When the model is quantized or not float32, or the ranges are another model's.
        ModelError: When the model cannot be converted to opset 13.
    """

    def __init__(self, model: onnx.ModelProto, ranges: Ranges, scheme: Scheme) -> None:
        check_float(model)
        self._model = normalise(model)
        self._scheme = scheme
        self._graph = Graph(self._model.graph)
        wanted = quantised_tensors(self._graph, scheme)
        missing = [name for name in wanted if name not in ranges.tensors]
        if missing:
            raise ConfigError(
                "ranges must belong to the model that is quantised, but they lack "
                f"{missing[0]!r} and {len(missing) - 1} more; collect them again"
            )
        self._ranges = ranges
        unusable = {name for name in wanted if not ranges.usable(name)}
        self._never = {
            node.name
            for node in self._graph.nodes
            if node.op_type in (*ANCHORS, *JOINING)
            and unusable & {*data_inputs(self._graph, node), *node.output}
        }
        self._names = {node.name for node in self._graph.nodes}
        self._weights: dict[str, IntegerWeight] = {}
        anchors = [node for node in self._graph.nodes if node.op_type in ANCHORS]
        self._pairs_along = {node.input[1]: k_axis(node) for node in anchors if scheme.exact_pairs}
        self._check_biases()
        self._check_channel_scales()
        self._check_roundings()

    def integer_nodes(self, exclude: Collection[str] = ()) -> set[str]:
        """Return the names of nodes that run in integers when the nodes ``exclude`` do not."""
        return integer_nodes(self._graph, self._scheme, {*exclude, *self._never})

    def __call__(self, exclude: Collection[str] = ()) -> onnx.ModelProto:
        """Return the quantized model; the nodes ``exclude`` (names) and their weights stay float.

        Raises:
            ConfigError: When ``exclude`` has a name that is not a node of the model.
        """
        unknown = sorted(set(exclude) - self._names)
        if unknown:
            raise ConfigError(
                f"nodes to exclude must be nodes of the model, but {unknown[0]!r} is none; "
                "take their names from the layer table"
            )
        chosen = self.integer_nodes(exclude)
        out = onnx.ModelProto()
        out.CopyFrom(self._model)
        if not chosen:
            return out
        self._correct_biases(out, chosen)
        ranges = {n: pair for n, pair in self._ranges.tensors.items() if self._ranges.usable(n)}
        if self._scheme.per_channel:
            ranges |= scale_channels(out, self._ranges.channel_scales, chosen)
        out.metadata_props.add(key=_INFERRED[0], value=_INFERRED[1])
        producer = out.producer_name, out.producer_version
        with _silent():
            quantised = self._quantizer(out, chosen, ranges).quantize_model()
        quantised.producer_name, quantised.producer_version = producer
        kept = [p for p in quantised.metadata_props if p.key != _INFERRED[0]]
        del quantised.metadata_props[:]
        quantised.metadata_props.extend(kept)
        clean_up(quantised.graph, chosen, exact_sums=not self._scheme.integer_adds)
        if self._scheme.per_channel:
            self._round_weights(quantised, chosen)
        return quantised

    def _check_biases(self) -> None:
        corrected = [
            (node, biases[node.name])
            for biases in (self._ranges.biases, self._ranges.half_biases)
            for node in self._graph.nodes
            if node.name in biases
        ]
        for node, values in corrected:
            bias = node.input[2] if len(node.input) > 2 else ""
            if bias not in self._graph.constants or self._graph.array(bias).size != len(values):
                raise ConfigError(
                    "corrected biases must belong to the model that is quantised, but layer "
                    f"{node.name!r} has no constant bias of {len(values)} values; calibrate again"
                )

    def _check_channel_scales(self) -> None:
        layers = *scalable_layers(self._graph), *dense_layers(self._graph)
        scalable = {node.name: node for node in layers}
        for name, scales in self._ranges.channel_scales.items():
            node = scalable.get(name)
            dims = self._graph.dims(node.input[0]) if node is not None else None
            if dims is None or dims[1] != len(scales.factors):
                raise ConfigError(
                    "channel scales must belong to the model that is quantised, but layer "
                    f"{name!r} is no convolution that can have {len(scales.factors)} of them; "
                    "calibrate again"
                )

    def _check_roundings(self) -> None:
        shapes = {
            node.name: self._graph.dims(node.input[1])
            for node in self._graph.nodes
            if node.op_type in ANCHORS
        }
        for name, rounding in self._ranges.roundings.items():
            if shapes.get(name) != rounding.shape:
                raise ConfigError(
                    "roundings must belong to the model that is quantised, but layer "
                    f"{name!r} has no weight of shape {rounding.shape}; calibrate again"
                )

    def _correct_biases(self, model: onnx.ModelProto, chosen: Collection[str]) -> None:
        # The correction undoes the error of a dtype, so a float32 layer keeps its bias. No other
        # node reads that constant: the model is normalised.
        constants = {i.name: i for i in model.graph.initializer}
        for node in model.graph.node:
            integer = node.name in chosen
            values = self._ranges.biases if integer else self._ranges.half_biases
            if node.name in values:
                bias = constants[node.input[2]]
                value = np.array(values[node.name], np.float32)
                bias.CopyFrom(numpy_helper.from_array(value.reshape(bias.dims), bias.name))

    def _round_weights(self, model: onnx.ModelProto, chosen: Collection[str]) -> None:
        # No other node reads these constants: the model is normalised.
        graph = Graph(model.graph)
        for node in graph.nodes:
            if node.name in chosen and node.name in self._ranges.roundings:
                name = graph.producer[node.input[1]].input[0]
                codes = self._ranges.roundings[node.name].codes(graph.array(name))
                if self._scheme.exact_pairs:
                    codes = within_pairs(codes, k_axis(node))
                graph.constants[name].CopyFrom(numpy_helper.from_array(codes, name))

    def _quantizer(
        self,
        model: onnx.ModelProto,
        chosen: set[str],
        ranges: Mapping[str, tuple[float, float]],
    ) -> QDQQuantizer:
        from onnxruntime.quantization import QuantType
        from onnxruntime.quantization.calibrate import TensorData

        from tvmopt.quantize.remembered_weights import RememberingQuantizer

        tensors = {
            name: TensorData(lowest=np.float32(low), highest=np.float32(high))
            for name, (low, high) in ranges.items()
        }
        options = {
            "ActivationSymmetric": self._scheme.symmetric,
            "WeightSymmetric": True,
            # Nodes are already selected by name.
            "ForceQuantizeNoInputCheck": True,
            # A result is quantized only where an integer node reads it.
            "OpTypesToExcludeOutputQuantization": [
                *ANCHORS, *(op for op in JOINING if op not in SHARING)
            ],
        }  # fmt: skip
        quantizer = RememberingQuantizer(
            model,
            self._scheme.per_channel,
            False,
            QuantType.QInt8,
            QuantType.QUInt8 if self._scheme.unsigned else QuantType.QInt8,
            tensors,
            sorted(chosen),
            [],
            [*ANCHORS, *JOINING],
            options,
        )
        quantizer.remembered = self._weights
        quantizer.pairs_along = self._pairs_along
        return quantizer


def quantize_model(
    model: onnx.ModelProto, ranges: Ranges, scheme: Scheme, exclude: Collection[str] = ()
) -> onnx.ModelProto:
    """Quantize a float model; :class:`Quantizer` is faster for several skip sets.

    Args:
        model: A prepared float32 model, ``Prepared.model``; it is not modified.
        ranges: Ranges of its activations.
        scheme: Quantization scheme.
        exclude: Names of nodes that stay float, with their weights.

    Returns:
        The model with Q and DQ nodes; existing nodes keep their names.

    Raises:
        ConfigError: When the model is quantized or not float32, the ranges are another model's, or
            ``exclude`` has a name that is not a node.
        ModelError: When the model cannot be converted to opset 13.
    """
    return Quantizer(model, ranges, scheme)(exclude)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    # The quantizer logs advice to the root logger.
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
