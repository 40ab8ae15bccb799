"""ONNX Runtime's quantizer with weights that are quantized once for all skip sets of a model.

Its loops over channels run in Python and take seconds for each skip set. Weights with one symmetric
scale for each channel are quantized here, all channels at once, with the same numbers. Importing
this file imports ONNX Runtime's quantizer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import qdq_quantizer
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import TENSOR_NAME_QUANT_SUFFIX

from tvmopt.quantize.exact_pairs import pair_factors, within_pairs

_LARGEST = 127


@dataclasses.dataclass(frozen=True)
class IntegerWeight:
    """A weight with a scale for each channel.

    Attributes:
        source: The float weight, as bytes.
        axis: Axis of the channels.
        scale: float32 scales, (channels,).
        codes: The int8 weight.
    """

    source: bytes
    axis: int
    scale: np.ndarray
    codes: np.ndarray


class RememberingQuantizer(QDQQuantizer):
    """``QDQQuantizer`` that looks weights up in :attr:`remembered`, by name.

    Attributes:
        remembered: Quantized weights; more are added. Set it before the model is quantized.
        pairs_along: Axis of K of the weights whose pairs of products must stay within int16.
    """

    remembered: dict[str, IntegerWeight]
    pairs_along: Mapping[str, int]
    tensors_to_quantize: dict[str, Any]

    def _calc_initializer_quant_params(self) -> dict[str, Any]:
        wanted = self.tensors_to_quantize
        found = {}
        constants = {i.name: i for i in self.model.initializer()}
        for name, info in wanted.items():
            axis = info.axis
            of_weight = info.tensor_type is qdq_quantizer.QDQQuantTensorType.WEIGHT
            if name in constants and of_weight and axis is not None:
                weight = self._remember(constants[name], axis)
                zero_points = np.zeros(len(weight.scale), np.int8)
                found[name] = qdq_quantizer.QuantizationParams(
                    zero_point=zero_points,
                    scale=weight.scale,
                    quant_type=self.weight_qType,
                    axis=weight.axis,
                )
        self.tensors_to_quantize = {n: info for n, info in wanted.items() if n not in found}
        try:
            others: dict[str, Any] = super()._calc_initializer_quant_params()
        finally:
            self.tensors_to_quantize = wanted
        return {**others, **found}

    def _add_qdq_nodes_for_initializer(self, weight_proto: onnx.TensorProto) -> None:
        weight = self.remembered.get(weight_proto.name)
        if weight is None:
            super()._add_qdq_nodes_for_initializer(weight_proto)
            return
        # The quantizer's own function runs on an empty weight, which takes no time.
        original = qdq_quantizer.quantize_onnx_initializer
        name = f"{weight_proto.name}{TENSOR_NAME_QUANT_SUFFIX}"
        qdq_quantizer.quantize_onnx_initializer = lambda *_, **__: numpy_helper.from_array(
            weight.codes, name
        )
        try:
            super()._add_qdq_nodes_for_initializer(weight_proto)
        finally:
            qdq_quantizer.quantize_onnx_initializer = original

    def _remember(self, tensor: onnx.TensorProto, axis: int) -> IntegerWeight:
        value = numpy_helper.to_array(tensor)
        known = self.remembered.get(tensor.name)
        if known is None or known.source != value.tobytes():
            known = _quantised(value, axis % value.ndim, self.pairs_along.get(tensor.name))
            self.remembered[tensor.name] = known
        return known


def _quantised(value: np.ndarray, axis: int, pairs_along: int | None) -> IntegerWeight:
    others = tuple(i for i in range(value.ndim) if i != axis)
    largest = np.abs(value).max(axis=others).astype(np.float64)
    scale = (2 * largest / (2 * _LARGEST)).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = 1
    shape = [-1 if i == axis else 1 for i in range(value.ndim)]
    if pairs_along is not None:
        factors = pair_factors(value / scale.reshape(shape), axis, pairs_along)
        scale = (scale * factors).astype(np.float32)
    codes = np.clip((value / scale.reshape(shape)).round(), -_LARGEST - 1, _LARGEST)
    codes = codes.astype(np.int8)
    if pairs_along is not None:
        codes = within_pairs(codes, pairs_along)
    return IntegerWeight(value.tobytes(), axis, scale, codes)
