"""Accuracy of maps of dtypes on the evaluation samples, emulated in ONNX Runtime."""

from __future__ import annotations

import functools
import hashlib
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx

from tvmopt.config import ConvertConfig, ScreenConfig
from tvmopt.device.target import TargetSpec
from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import Accuracy, AccuracyMeter
from tvmopt.evaluate.dataset import Batch
from tvmopt.evaluate.drop_interval import ERRORS_OF_INTERVAL
from tvmopt.evaluate.input_rounding import InputRounding
from tvmopt.frontend.reference import in_any_order
from tvmopt.host import usable_cores
from tvmopt.metrics.check import FIDELITIES
from tvmopt.quantize import Quantizer, Ranges, Sensitivity, scheme_for
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.dtype_map import DtypeMap, whole_model_dtype
from tvmopt.quantize.map_measurement import emulated
from tvmopt.quantize.mixed_biases import with_biases
from tvmopt.stages.asked_metric import asked_metric
from tvmopt.stages.convert_check import library_tolerance
from tvmopt.stages.evaluation_data import evaluation_data
from tvmopt.stages.float_model import read_float_model
from tvmopt.stages.float_session import FloatModelCall
from tvmopt.stages.kept_outputs import with_kept_outputs
from tvmopt.stages.layer_dtypes import dtypes_of_map

# A drop that is so many standard errors above the limit needs no more samples; at least so many
# show it. They are looked at each time their number doubled, so that chance has few occasions.
_ERRORS_ABOVE, _LEAST_SAMPLES = 4.0, 16
_AHEAD = 2  # batches that are computed before they are compared, for each call at a time
_MOST_CALLS = 8  # at a time; each call keeps activations of the whole network

Outputs = list[np.ndarray]


class EmulatedAccuracy:
    """Measure maps of one model on the evaluation part of the data.

    Args:
        config: Configuration of the screen stage.
        model: The ONNX file.
        found: The analysis that chose the maps.
        data: The user's data; None for random inputs.
        ranges: Ranges and fitted layers of the calibration; needed where a map has int8 layers.

    Raises:
        ConfigError, ModelError: The model or the data cannot be used.
    """

    def __init__(
        self,
        config: ScreenConfig,
        model: Path,
        found: Sensitivity,
        data: Path | None,
        ranges: Ranges | None,
    ) -> None:
        self._found, self._ranges, self._limit = found, ranges, config.max_accuracy_drop
        self._convert = ConvertConfig.from_dict(config.convert)
        target = TargetSpec.from_dict(self._convert.target)
        self._scheme = scheme_for(self._convert.quantization, target.arch())
        self._read = read = read_float_model(model, self._convert.input_shapes, data)
        self._tolerance = in_any_order(
            read.prepared.model, library_tolerance(whole_model_dtype(found.dtypes))
        )
        chosen = evaluation_data(data, read.inputs, read.random_inputs)
        self._metric = asked_metric(config, read.outputs, chosen)
        self._dataset = chosen.take(range(min(config.max_samples, chosen.samples)))
        # Of all samples, so that the draws are the same for all maps.
        self._arrays = {} if chosen.is_random else self._dataset.arrays
        self._scores = read.class_scores.on(random_inputs=chosen.is_random)
        reference = read.prepared.reference
        digest = hashlib.sha256(reference.SerializeToString()).hexdigest()
        self._expected = with_kept_outputs(_session(reference), digest)
        self._calls = min(_MOST_CALLS, usable_cores())

    def __call__(self, one: DtypeMap, time_limit_s: float) -> Accuracy | None:
        """Return the accuracy of a map; None where the metric fails on its outputs.

        It is of fewer samples where these show that the map loses too much, or where time ended. In
        the latter case later maps see no more samples.

        Args:
            one: The map.
            time_limit_s: Most seconds, so that fewer samples may be seen; 0 for no limit.
        """
        session = _session(self._emulated(one))
        dataset = self._dataset
        meter = AccuracyMeter(
            self._metric,
            dataset.labels is not None,
            self._tolerance,
            class_scores=self._scores,
            is_expected=True,
        )
        began, samples, look_at = time.monotonic(), 0, _LEAST_SAMPLES
        may_refuse = meter.metric in FIDELITIES  # intervals of other metrics take seconds
        rounding = InputRounding(self._arrays if meter.takes_again else {})
        try:
            with ThreadPoolExecutor(self._calls) as pool:
                for batch, got, want, again in self._computed(pool, session, rounding):
                    meter.add(got, want, batch.labels, batch.valid, batch.padding, again)
                    samples += batch.valid
                    if may_refuse and samples >= look_at:
                        look_at *= 2
                        found = meter.result(with_interval=True)
                        if is_refused(found, self._limit):
                            return found
                    if 0 < time_limit_s < time.monotonic() - began:
                        break
            found = meter.result(with_interval=True)
            if not is_refused(found, self._limit):
                self._dataset = dataset.take(range(found.samples))
            return found
        except ConfigError:  # the float model has a number: outputs of this one are NaN or such
            return None

    def _computed(
        self, pool: Executor, session: FloatModelCall, rounding: InputRounding
    ) -> Iterator[tuple[Batch, Outputs, Outputs, Outputs]]:
        """Yield each batch with outputs of the map, of the float model, and of that rounded anew.

        Calls of one thread each run at the same time.
        """
        pending: deque[tuple[Batch, Future[Outputs], list[Future[Outputs]]]] = deque()

        def first() -> tuple[Batch, Outputs, Outputs, Outputs]:
            batch, got, exact = pending.popleft()
            want, *again = (future.result() for future in exact)
            return batch, got.result(), want, [outputs[0] for outputs in again]

        for batch in self._dataset.batches():
            inputs = [batch.inputs, *rounding.draws(batch.inputs)]
            exact = [pool.submit(self._expected, one) for one in inputs]
            pending.append((batch, pool.submit(session, batch.inputs), exact))
            if len(pending) > _AHEAD * self._calls:
                yield first()
        while pending:
            yield first()

    def _emulated(self, one: DtypeMap) -> onnx.ModelProto:
        model, quantizer = self._read.prepared.model, None
        by_name = dtypes_of_map(self._convert, self._read.layers, self._found, one)
        if "int8" in by_name.values():
            if self._ranges is None:
                raise ConfigError(
                    "a map with int8 layers needs the ranges of the calibrate stage, but got none"
                    "; run calibrate first"
                )
            quantizer = Quantizer(
                model, with_biases(self._ranges, one.biases, by_name), self._scheme
            )
        return emulated(model, quantizer, by_name)


def is_refused(measured: Accuracy, limit: float) -> bool:
    """Return whether samples show that the drop of fidelity is above a limit, without a doubt."""
    if not measured.fidelity or measured.interval is None or measured.samples < _LEAST_SAMPLES:
        return False
    error = (measured.drop - measured.interval[0]) / ERRORS_OF_INTERVAL
    return measured.drop - _ERRORS_ABOVE * error > limit


def _session(model: onnx.ModelProto) -> FloatModelCall:
    """Return a call of the model, of one thread, from inputs to outputs."""
    return functools.partial(new_session(model, threads=1).run, None)
