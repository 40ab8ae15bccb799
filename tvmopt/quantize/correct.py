"""Add channel scales and corrected biases to ranges, where they lower the error of the outputs.

Channel scales (:mod:`.channel_scales`) are determined on a part of the samples and kept where they
lower the error on the others. Then the parameter ``quantizer`` says what corrects the biases:

- ``onnxruntime``: no correction.
- ``nncf``: fast bias correction; ``nncf-accurate``: the accurate one.
- ``auto``: the accurate one, or the fast one where that fails, as in networks with residual
  additions; kept where it lowers the error of the outputs on samples that NNCF did not see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx

from tvmopt.choices import ACCURATE, AUTO, FAST, ONNXRUNTIME
from tvmopt.errors import ModelError
from tvmopt.quantize.bias_correction import corrected_biases
from tvmopt.quantize.channel_scales import collect_channel_scales
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.probe import noise_ratio
from tvmopt.quantize.quantizer import quantize_model
from tvmopt.quantize.ranges import Inputs, Progress, Ranges
from tvmopt.quantize.scheme import Scheme

_LEAST_TO_SPLIT = 8  # batches; with fewer, the error is measured on the batches that were seen
_HELD_BACK = 4  # one batch in four


@dataclasses.dataclass(frozen=True)
class Corrected:
    """Ranges with the biases that are used.

    Attributes:
        ranges: The ranges; their biases are empty without a correction.
        quantizer: The quantizer that was used: one of ``choices.QUANTIZERS``.
        line: What was done and why, as words.
    """

    ranges: Ranges
    quantizer: str
    line: str


def with_channel_scales(
    model: onnx.ModelProto, ranges: Ranges, batches: Sequence[Inputs]
) -> tuple[Ranges, str]:
    """Return ``ranges`` with channel scales where these help, and what was done as words.

    Args:
        model: A prepared float32 model, ``Prepared.model``.
        ranges: Ranges of its activations.
        batches: The calibration data of the ranges.

    Returns:
        The words are empty where the model has no convolution that can have channel scales.
    """
    seen, unseen = _parts(batches)
    scales = collect_channel_scales(model, seen)
    if not scales:
        return ranges, ""
    done = dataclasses.replace(ranges, channel_scales=scales)
    before, after = (output_error(model, one, unseen) for one in (ranges, done))
    change = f"the error of the outputs from {before:.2%} to {after:.2%}"
    layers = f"{len(scales)} depthwise convolutions"
    if not after < before:
        return ranges, f"one scale for all channels of the inputs of {layers}: more change {change}"
    done = dataclasses.replace(ranges, channel_scales=collect_channel_scales(model, batches))
    return done, f"a scale for each channel of the inputs of {layers}: this changes {change}"


def correct(
    model: onnx.ModelProto,
    ranges: Ranges,
    batches: Sequence[Inputs],
    quantizer: str,
    progress: Progress | None = None,
) -> Corrected:
    """Return ``ranges`` with the corrected biases of the layers.

    Args:
        model: A prepared float32 model, ``Prepared.model``.
        ranges: Ranges of its activations, with the channel scales to use.
        batches: The calibration data of the ranges.
        quantizer: ``"auto"`` or one of ``choices.QUANTIZERS``. NNCF must be installed unless it is
            ``"onnxruntime"``.
        progress: Called before each step.

    Raises:
        ModelError: When NNCF cannot quantize the model and ``quantizer`` names NNCF.
    """
    if quantizer == ONNXRUNTIME:
        return Corrected(ranges, ONNXRUNTIME, "biases as they are")
    if progress is not None:
        progress(len(batches), len(batches), "calibrate: bias correction")
    if quantizer != AUTO:
        done = _with_biases(model, ranges, batches, accurate=quantizer == ACCURATE)
        return Corrected(done, quantizer, f"biases of {len(done.biases)} layers corrected by NNCF")
    return _measured(model, ranges, batches)


def _measured(model: onnx.ModelProto, ranges: Ranges, batches: Sequence[Inputs]) -> Corrected:
    """Correct the biases on a part of the data; keep them where they help on the rest."""
    seen, unseen = _parts(batches)
    used = ACCURATE
    try:
        done = _with_biases(model, ranges, seen, accurate=True)
    except ModelError:
        used = FAST
        try:
            done = _with_biases(model, ranges, seen, accurate=False)
        except ModelError as error:
            return Corrected(ranges, ONNXRUNTIME, f"biases as they are: {error}")
    before, after = (output_error(model, one, unseen) for one in (ranges, done))
    change = f"the error of the outputs from {before:.2%} to {after:.2%}"
    if not after < before:
        return Corrected(ranges, ONNXRUNTIME, f"biases as they are: NNCF changes {change}")
    line = f"biases of {len(done.biases)} layers corrected by NNCF: {change}"
    return Corrected(done, used, line)


def _with_biases(
    model: onnx.ModelProto, ranges: Ranges, batches: Sequence[Inputs], *, accurate: bool
) -> Ranges:
    biases = corrected_biases(model, batches, accurate, ranges.channel_scales)
    return dataclasses.replace(ranges, biases=biases)


def output_error(model: onnx.ModelProto, ranges: Ranges, batches: Sequence[Inputs]) -> float:
    """Return the relative error power of the worst output of the quantized model, a mean.

    All layers are quantized. The error of a batch counts 1 at most.
    """
    exact = new_session(model)
    quantised = new_session(quantize_model(model, ranges, Scheme()))
    ratios = []
    for inputs in batches:
        pairs = zip(quantised.run(None, inputs), exact.run(None, inputs), strict=True)
        ratios.append(min(1.0, max(noise_ratio(got, want) for got, want in pairs)))
    return float(np.mean(ratios))


def _parts(batches: Sequence[Inputs]) -> tuple[list[Inputs], list[Inputs]]:
    """Return the batches to determine scales or biases on, and others to measure them on."""
    if len(batches) < _LEAST_TO_SPLIT:
        return list(batches), list(batches)
    seen = [one for at, one in enumerate(batches) if at % _HELD_BACK]
    return seen, list(batches[::_HELD_BACK])
