"""Add corrected biases to ranges, as the parameter ``quantizer`` asks.

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
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.probe import noise_ratio
from tvmopt.quantize.quantizer import quantize_model
from tvmopt.quantize.ranges import Inputs, Progress, Ranges
from tvmopt.quantize.scheme import Scheme

_LEAST_TO_SPLIT = 8  # batches; with fewer, the error is measured on the batches that NNCF saw
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
        ranges: Ranges of its activations.
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
        biases = corrected_biases(model, batches, quantizer == ACCURATE)
        done = dataclasses.replace(ranges, biases=biases)
        return Corrected(done, quantizer, f"biases of {len(biases)} layers corrected by NNCF")
    return _measured(model, ranges, batches)


def _measured(model: onnx.ModelProto, ranges: Ranges, batches: Sequence[Inputs]) -> Corrected:
    """Correct the biases on a part of the data; keep them where they help on the rest."""
    seen, unseen = _parts(batches)
    used = ACCURATE
    try:
        biases = corrected_biases(model, seen, accurate=True)
    except ModelError:
        used = FAST
        try:
            biases = corrected_biases(model, seen, accurate=False)
        except ModelError as error:
            return Corrected(ranges, ONNXRUNTIME, f"biases as they are: {error}")
    done = dataclasses.replace(ranges, biases=biases)
    before, after = (output_error(model, one, unseen) for one in (ranges, done))
    change = f"the error of the outputs from {before:.2%} to {after:.2%}"
    if not after < before:
        return Corrected(ranges, ONNXRUNTIME, f"biases as they are: NNCF changes {change}")
    line = f"biases of {len(biases)} layers corrected by NNCF: {change}"
    return Corrected(done, used, line)


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
    """Return the batches that NNCF sees, and others to measure its correction on."""
    if len(batches) < _LEAST_TO_SPLIT:
        return list(batches), list(batches)
    seen = [one for at, one in enumerate(batches) if at % _HELD_BACK]
    return seen, list(batches[::_HELD_BACK])
