"""Bias correction with NNCF: undo the shift of the mean that quantization causes in each channel.

NNCF quantizes the model in its own way, compares the mean of each channel of a layer's result with
the float model's, and adds the difference to the layer's bias. We keep the biases alone: our
:class:`~tvmopt.quantize.quantizer.Quantizer` places Q and DQ nodes. NNCF's quantizers get the
settings that ours have (per-tensor activations after the channel scales, extremes of the samples),
so that the shift is the same.

A correction belongs to its layer. The fast method quantizes one layer at a time; the accurate one
quantizes what is before the layer too, but after its correction, whose mean is the float model's.
So the other corrections stay right to first order when a layer is skipped; they are not always
right, see benchmarks/results/2026-11-27-nncf.md.

Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, ICCV
2019, section 4.2; NNCF's ``FastBiasCorrection`` and ``BiasCorrection``.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from tvmopt.errors import ModelError, TvmoptError
from tvmopt.nncf_import import nncf_without_telemetry
from tvmopt.quantize.channel_scales import ChannelScales, scale_channels
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.normalise import normalise
from tvmopt.quantize.ranges import Inputs

Biases = dict[str, tuple[float, ...]]
"""Bias of each corrected layer, one value for each output channel, by the name of its node."""

_BIASED = ("Conv", "ConvTranspose", "Gemm")


def corrected_biases(
    model: onnx.ModelProto,
    batches: Sequence[Inputs],
    accurate: bool,
    scales: Mapping[str, ChannelScales] | None = None,
) -> Biases:
    """Return the biases that NNCF changes when it quantizes a model.

    Args:
        model: A prepared float32 model, ``Prepared.model``; it is not modified.
        batches: Calibration data, one mapping from input names for each call of the model.
        scales: Channel scales that the quantized model will have, by node name; None: none.
        accurate: Correct a layer with the quantized layers before it, otherwise alone.

    Raises:
        ModelError: When NNCF cannot quantize the model.
    """
    normalised = normalise(model)
    if scales:
        scale_channels(normalised, scales, scales)
    with nncf_without_telemetry() as nncf, silent():
        with _explained():
            quantised = _quantised(nncf, normalised, batches, accurate)
        return _changed(Graph(normalised.graph), Graph(quantised.graph))


def _quantised(
    nncf: Any, model: onnx.ModelProto, batches: Sequence[Inputs], accurate: bool
) -> onnx.ModelProto:
    from nncf.quantization.advanced_parameters import (
        AdvancedQuantizationParameters,
        QuantizationParameters,
    )
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    settings = AdvancedQuantizationParameters(
        # Our kernels do not overflow: half the range of weights would cost accuracy.
        overflow_fix=nncf.OverflowFix.DISABLE,
        activations_quantization_params=QuantizationParameters(per_channel=False),
        activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,
    )
    return nncf.quantize(
        model,
        nncf.Dataset([dict(inputs) for inputs in batches]),
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=len(batches),
        fast_bias_correction=not accurate,
        advanced_parameters=settings,
    )


def _changed(before: Graph, after: Graph) -> Biases:
    nodes = {node.name: node for node in after.nodes}
    found: Biases = {}
    for node in before.nodes:
        other = nodes.get(node.name)
        if node.op_type not in _BIASED or len(node.input) < 3 or other is None:
            continue
        old, new = node.input[2], other.input[2]
        if old not in before.constants or new not in after.constants:
            continue
        value = after.array(new)
        if not np.array_equal(value, before.array(old)) and np.isfinite(value).all():
            found[node.name] = tuple(map(float, value.ravel()))
    return found


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep NNCF from drawing progress bars and logging advice."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (TvmoptError, MemoryError):
        raise
    except Exception as error:  # NNCF raises whatever its parts raise
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelError(
            f"NNCF must be able to quantise the model, but it says: {reason}; use "
            "quantizer=onnxruntime"
        ) from error
