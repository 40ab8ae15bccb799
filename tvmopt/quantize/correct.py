"""Add channel scales and corrections of layers to ranges, where they lower the outputs' error.

Channel scales (:mod:`.channel_scales`) are determined on a part of the samples and kept where they
lower the error on the others. Then the parameter ``quantizer`` says what corrects the layers:

- ``onnxruntime``: nothing.
- ``nncf``: NNCF's fast bias correction; ``nncf-accurate``: its accurate one.
- ``layerwise``: ranges are narrowed (:mod:`.narrow_ranges`) where that lowers the error of the
  outputs on held-back samples. Weights and biases are fitted to the float model, see
  :mod:`.layerwise`.
- ``auto``: as ``layerwise``, kept where it lowers the typical error of the outputs on samples that
  the fit did not see.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx

from tvmopt.choices import ACCURATE, AUTO, LAYERWISE, ONNXRUNTIME
from tvmopt.quantize.bias_correction import corrected_biases
from tvmopt.quantize.channel_scales import ChannelExtremes, collect_channel_scales
from tvmopt.quantize.dense_scales import dense_scales, with_extremes
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.layerwise import fit_layers, spread
from tvmopt.quantize.narrow_ranges import narrow_ranges
from tvmopt.quantize.probe import noise_ratio
from tvmopt.quantize.quantizer import quantize_model
from tvmopt.quantize.ranges import Inputs, Progress, Ranges
from tvmopt.quantize.scheme import Scheme

_LEAST_TO_SPLIT = 8  # batches; with fewer, the error is measured on the batches that were seen
_HELD_BACK = 4  # one batch in four
_LEAST_ERROR = 1e-9  # that counts in a geometric mean
# A fit may raise the mean error of few batches by this, where the typical error falls.
_MOST_OF_ERROR = 2.0


@dataclasses.dataclass(frozen=True)
class Corrected:
    """Ranges with the corrections that are used.

    Attributes:
        ranges: The ranges; without a correction, their biases and roundings are empty.
        quantizer: The quantizer that was used: one of ``choices.QUANTIZERS``.
        line: What was done and why, as words.
    """

    ranges: Ranges
    quantizer: str
    line: str


class HeldBack:
    """Calibration data in two parts: one to determine scales and corrections on, one to judge them.

    The float model runs once on the second part, and the error of ranges is measured once.

    Args:
        model: A prepared float32 model, ``Prepared.model``.
        batches: The calibration data.
        scheme: Quantization scheme; by default :class:`Scheme`'s.

    Attributes:
        scheme: The scheme.
        seen: The batches to determine on.
        unseen: The other batches; with fewer than eight batches, all in both.
        judged: The batches of these to judge on: fewer of large inputs.
    """

    def __init__(
        self, model: onnx.ModelProto, batches: Sequence[Inputs], scheme: Scheme | None = None
    ) -> None:
        self._model, self.scheme = model, scheme or Scheme()
        self.seen, self.unseen = list(batches), list(batches)
        if len(batches) >= _LEAST_TO_SPLIT:
            self.seen = [one for at, one in enumerate(batches) if at % _HELD_BACK]
            self.unseen = list(batches[::_HELD_BACK])
        self.judged = spread(self.unseen)
        self._expected: list[list[np.ndarray]] = []
        self._known: list[tuple[Ranges, np.ndarray]] = []

    def error(self, ranges: Ranges) -> float:
        """Return the relative error power of the worst output of the quantized model, a mean.

        All layers are quantized. The error of a batch counts 1 at most.
        """
        return float(self._errors(ranges).mean())

    def typical_error(self, ranges: Ranges) -> float:
        """Return the geometric mean of what :meth:`error` is the mean of.

        In the mean, three of sixteen lines of text in which a symbol changes outweigh thirteen
        whose error falls to a half.
        """
        return float(np.exp(np.log(np.maximum(self._errors(ranges), _LEAST_ERROR)).mean()))

    def _errors(self, ranges: Ranges) -> np.ndarray:
        """Return the error of each batch to judge on."""
        for known, errors in self._known:
            if known is ranges:
                return errors
        if not self._expected:
            exact = new_session(self._model)
            self._expected = [exact.run(None, inputs) for inputs in self.judged]
        quantised = new_session(quantize_model(self._model, ranges, self.scheme))
        ratios = []
        for inputs, expected in zip(self.judged, self._expected, strict=True):
            pairs = zip(quantised.run(None, inputs), expected, strict=True)
            ratios.append(min(1.0, max(noise_ratio(got, want) for got, want in pairs)))
        self._known.append((ranges, np.array(ratios)))
        return self._known[-1][1]

    def know_as(self, ranges: Ranges, measured: Ranges) -> None:
        """Give ``ranges`` the errors of ``measured``, from which they hardly differ."""
        self._known.append((ranges, self._errors(measured)))


def with_channel_scales(
    model: onnx.ModelProto,
    ranges: Ranges,
    batches: Sequence[Inputs],
    held_back: HeldBack | None = None,
) -> tuple[Ranges, str]:
    """Return ``ranges`` with channel scales where these help, and what was done as words.

    Args:
        model: A prepared float32 model, ``Prepared.model``.
        ranges: Ranges of its activations.
        batches: The calibration data of the ranges.
        held_back: The same data in two parts, to share measurements with :func:`correct`.

    Returns:
        The words are empty where no convolution of the model can have channel scales.
    """
    held_back = held_back or HeldBack(model, batches)
    extremes = ChannelExtremes()
    scales = collect_channel_scales(model, held_back.seen, extremes)
    dense = dense_scales(model, ranges, extremes, held_back.seen, held_back.scheme)
    if not scales and not dense:
        return ranges, ""
    before = least = held_back.error(ranges)
    done, kinds, refused = ranges, [], []
    for group, kind in ((scales, "depthwise"), (dense, "dense")):
        if not group:
            continue
        words = f"{len(group)} {kind} convolutions"
        more = dataclasses.replace(ranges, channel_scales={**done.channel_scales, **group})
        error = held_back.error(more)
        if error < least:
            least, done = error, more
            kinds.append(words)
        else:
            refused.append(f"more for {words}: {error:.2%}")
    refusal = "".join(f"; {words}" for words in refused)
    if done is ranges:
        return ranges, f"one scale for all channels: error of the outputs {before:.2%}{refusal}"
    # Scales of all samples differ too little to measure again.
    every = collect_channel_scales(model, held_back.unseen, extremes)
    every |= with_extremes(
        model, {n: dense[n] for n in dense if n in done.channel_scales}, extremes
    )
    kept = {name: every.get(name, one) for name, one in done.channel_scales.items()}
    measured, done = done, dataclasses.replace(ranges, channel_scales=kept)
    held_back.know_as(done, measured)
    change = f"the error of the outputs from {before:.2%} to {least:.2%}"
    layers = " and ".join(kinds)
    return done, f"a scale for each channel of the inputs of {layers} changes {change}{refusal}"


def correct(
    model: onnx.ModelProto,
    ranges: Ranges,
    batches: Sequence[Inputs],
    quantizer: str,
    progress: Progress | None = None,
    held_back: HeldBack | None = None,
    deadline: float = math.inf,
) -> Corrected:
    """Return ``ranges`` with the corrected weights and biases of the layers.

    Args:
        model: A prepared float32 model, ``Prepared.model``.
        ranges: Ranges of its activations, with the channel scales to use.
        batches: The calibration data of the ranges.
        quantizer: ``"auto"`` or one of ``choices.QUANTIZERS``. NNCF must be installed where it
            names NNCF.
        progress: Called before each step.
        held_back: The same data in two parts, to share measurements.
        deadline: Value of :func:`time.monotonic` after which no range is narrowed and
            no layer is fitted.

    Raises:
        ModelError: When NNCF cannot quantize the model and ``quantizer`` names NNCF.
    """
    if quantizer == ONNXRUNTIME:
        return Corrected(ranges, ONNXRUNTIME, "weights and biases as they are")
    if progress is not None:
        progress(len(batches), len(batches), "calibrate: correction of layers")
    if quantizer in (AUTO, LAYERWISE):
        held_back = held_back or HeldBack(model, batches)
        if quantizer == AUTO:
            return _measured(model, ranges, held_back, deadline)
        narrowed = _narrowed(model, ranges, held_back, deadline)
        done = fit_layers(model, narrowed, batches, held_back.scheme, deadline)
        return Corrected(done, quantizer, _fitted(done, ranges))
    biases = corrected_biases(model, batches, quantizer == ACCURATE, ranges.channel_scales)
    done = dataclasses.replace(ranges, biases=biases)
    return Corrected(done, quantizer, f"biases of {len(biases)} layers corrected by NNCF")


def _measured(
    model: onnx.ModelProto, ranges: Ranges, held_back: HeldBack, deadline: float
) -> Corrected:
    """Fit the layers on a part of the data; keep the fit where it helps on the rest."""
    narrowed = _narrowed(model, ranges, held_back, deadline)
    done = fit_layers(model, narrowed, held_back.seen, held_back.scheme, deadline)
    before, after = (held_back.typical_error(one) for one in (ranges, done))
    change = f"the typical error of the outputs from {before:.2%} to {after:.2%}"
    is_far_off = held_back.error(done) > _MOST_OF_ERROR * held_back.error(ranges)
    if is_far_off or not after < before:
        return Corrected(ranges, ONNXRUNTIME, f"layers as they are: fitting changes {change}")
    return Corrected(done, LAYERWISE, f"{_fitted(done, ranges)}: this changes {change}")


def _narrowed(
    model: onnx.ModelProto, ranges: Ranges, held_back: HeldBack, deadline: float
) -> Ranges:
    """Return narrower ranges where they lower the error on the held-back samples."""
    done = narrow_ranges(model, ranges, held_back.seen, held_back.scheme, deadline)
    if done == ranges:
        return ranges
    return done if held_back.error(done) < held_back.error(ranges) else ranges


def _fitted(done: Ranges, before: Ranges) -> str:
    weights, biases = len(done.roundings), len(done.biases)
    text = f"weights of {weights} layers and biases of {biases} fitted to the float model"
    narrower = sum(done.tensors[name] != pair for name, pair in before.tensors.items())
    return f"{narrower} ranges narrowed, {text}" if narrower else text


def output_error(model: onnx.ModelProto, ranges: Ranges, batches: Sequence[Inputs]) -> float:
    """Return the relative error power of the worst output of the quantized model, a mean.

    See :meth:`HeldBack.error`; all batches are measured.
    """
    every = HeldBack(model, batches)
    every.judged = list(batches)
    return every.error(ranges)
