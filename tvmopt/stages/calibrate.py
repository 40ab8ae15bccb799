"""Calibrate stage, for int8: ranges of activations, channel scales, and corrected layers.

All come from the calibration part of the data.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path

import numpy as np
import onnx

from tvmopt.choices import AUTO, ONNXRUNTIME, U8S8_PAIRS
from tvmopt.config import CalibrateConfig
from tvmopt.evaluate.dataset import Dataset, load_dataset, random_dataset
from tvmopt.frontend import load_onnx, prepare, shapes_for
from tvmopt.frontend.reference import Reference, input_specs, working_random_inputs
from tvmopt.quantize import HeldBack, Ranges, Scheme, collect_ranges, correct, with_channel_scales
from tvmopt.quantize.downstream import new_session
from tvmopt.stages.result import Progress, StageResult

RANGES_FILE = "ranges.json"
# Of a time limit: the share after which no layer is fitted, so that the fit can be measured.
_FITTED_BY = 0.7
# Calls of the float model that calibration on a sample takes about as long as: ranges, channel
# scales, fitting the layers, and measuring the quantized model; and the share for the samples.
_CALLS_OF_A_SAMPLE, _SAMPLES_SHARE = 12, 0.5
_RANDOM = "random inputs: no data was given, so accuracy on real inputs is unknown"


def calibrate(
    config: CalibrateConfig,
    model: Path,
    out_dir: Path,
    progress: Progress,
    data: Path | None = None,
) -> StageResult:
    """Run the float model on samples, and write the range of each activation.

    The file also holds the channel scales that help, and the corrected weights and biases, as
    ``config.quantizer`` asks. Without data there are no scales, and ``"auto"`` corrects nothing:
    a channel's values on random inputs say nothing about real ones. Within
    ``config.calibration_time`` fewer samples are seen and fewer layers corrected, as need be.

    Raises:
        ConfigError, ModelError: The model or the data cannot be used.
    """
    start, limit_s = time.perf_counter(), config.calibration_time
    fit_until = time.monotonic() + _FITTED_BY * limit_s if limit_s else math.inf
    loaded = load_onnx(model)
    prepared = prepare(loaded, shapes_for(loaded, config.input_shapes))
    dataset = calibration_data(prepared.reference, data, config.calibration_samples)
    given = dataset.samples
    if limit_s:
        dataset = samples_within(prepared.model, dataset, limit_s)
    batches = [batch.inputs for batch in dataset.batches()]
    scheme = Scheme(U8S8_PAIRS if config.exact_pairs else "u8s8", method=config.calibration)
    # The target is not known here: ranges cover what integers may be on any device.
    widest = dataclasses.replace(scheme, integer_adds=True)
    ranges = collect_ranges(prepared.model, batches, widest, progress)
    is_blind = data is None and config.quantizer == AUTO
    quantizer = ONNXRUNTIME if is_blind else config.quantizer
    scales_line = ""
    held_back = HeldBack(prepared.model, batches, scheme)
    if data is not None and time.monotonic() < fit_until:
        ranges, scales_line = with_channel_scales(prepared.model, ranges, batches, held_back)
    if time.monotonic() >= fit_until:
        quantizer = ONNXRUNTIME
    corrected = correct(
        prepared.model, ranges, batches, quantizer, progress, held_back, deadline=fit_until
    )
    (out_dir / RANGES_FILE).write_text(json.dumps(corrected.ranges.to_dict(), indent=1))
    metrics = {
        "calibrate_s": time.perf_counter() - start,
        "calibration_samples": float(dataset.samples),
        "calibrated_tensors": float(len(ranges.tensors)),
        "corrected_biases": float(len(corrected.ranges.biases)),
        "fitted_weights": float(len(corrected.ranges.roundings)),
        "channel_scaled_layers": float(len(ranges.channel_scales)),
    }
    tags = {
        "tvmopt.calibration_data": data.name if data else _RANDOM,
        "tvmopt.quantizer": corrected.quantizer,
    }
    what = f"{dataset.samples} {'' if data else 'random '}samples"
    said = f"{len(ranges.tensors)} ranges by {config.calibration} on {what}"
    bounded = []
    if dataset.samples < given:
        bounded.append(f"{dataset.samples} of {given} samples, for time")
    if time.monotonic() >= fit_until:
        bounded.append("time ran out before all layers were fitted")
    if bounded:
        tags["tvmopt.notes"] = "; ".join(bounded)
    lines = (said, *bounded, scales_line, corrected.line)
    return StageResult(metrics, tags, [*filter(None, lines)])


def samples_within(model: onnx.ModelProto, dataset: Dataset, limit_s: float) -> Dataset:
    """Return as many evenly spread samples as can be calibrated on in time; at least one batch.

    Args:
        model: A prepared float32 model, which runs twice here.
        dataset: The samples.
        limit_s: Time limit of the calibration in seconds.
    """
    inputs = dataset.batch(0).inputs
    session = new_session(model)
    session.run(None, inputs)
    start = time.perf_counter()
    session.run(None, inputs)
    once = time.perf_counter() - start
    batches = max(1, int(_SAMPLES_SHARE * limit_s / (_CALLS_OF_A_SAMPLE * max(once, 1e-6))))
    return _spread(dataset, batches * max(1, dataset.samples // len(dataset)))


def read_ranges(folder: Path) -> Ranges:
    """Read the ranges and corrected biases that the calibrate stage wrote."""
    return Ranges.from_dict(json.loads((folder / RANGES_FILE).read_text()))


def calibration_data(reference: onnx.ModelProto, data: Path | None, most: int) -> Dataset:
    """Return at most ``most`` evenly spread calibration samples; random ones without data."""
    specs = input_specs(reference)
    if data is None:
        kind, _, _ = working_random_inputs(Reference(reference), specs, seed=0)
        return random_dataset(specs, seed=0, kind=kind)
    return _spread(load_dataset(data, specs).split("calibrate"), most)


def _spread(dataset: Dataset, most: int) -> Dataset:
    """Return at most ``most`` evenly spread samples."""
    if dataset.samples <= most:
        return dataset
    return dataset.take(np.linspace(0, dataset.samples - 1, most).round().astype(np.int64))
