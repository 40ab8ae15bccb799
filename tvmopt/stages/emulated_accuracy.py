"""Accuracy of maps of dtypes on the evaluation samples, emulated in ONNX Runtime."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx

from tvmopt.config import ConvertConfig, ScreenConfig
from tvmopt.device.target import TargetSpec
from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.frontend.reference import in_any_order
from tvmopt.quantize import Quantizer, Ranges, Sensitivity, scheme_for
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.dtype_map import DtypeMap, whole_model_dtype
from tvmopt.quantize.map_measurement import emulated
from tvmopt.quantize.mixed_biases import with_biases
from tvmopt.stages.asked_metric import asked_metric
from tvmopt.stages.compared_accuracy import compare_accuracy
from tvmopt.stages.comparison_table import CANDIDATE
from tvmopt.stages.convert_check import library_tolerance
from tvmopt.stages.evaluation_data import evaluation_data
from tvmopt.stages.float_model import read_float_model
from tvmopt.stages.kept_outputs import with_kept_outputs
from tvmopt.stages.layer_dtypes import dtypes_of_map
from tvmopt.stages.signature import Signature

_ANY_COSINE = -1.0  # a map that is far off has its drop


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
        self._config, self._found, self._ranges = config, found, ranges
        self._convert = ConvertConfig.from_dict(config.convert)
        target = TargetSpec.from_dict(self._convert.target)
        self._scheme = scheme_for(self._convert.quantization, target.arch())
        self._read = read = read_float_model(model, self._convert.input_shapes, data)
        self._signature = Signature(
            inputs=read.inputs,
            outputs=read.outputs,
            random_inputs=read.random_inputs,
            tolerance=in_any_order(
                read.prepared.model, library_tolerance(whole_model_dtype(found.dtypes))
            ),
            min_cosine=_ANY_COSINE,
            class_scores=read.class_scores,
        )
        self._dataset = evaluation_data(data, self._signature)
        self._metric = asked_metric(config, self._signature, self._dataset)
        digest = hashlib.sha256(read.prepared.reference.SerializeToString()).hexdigest()
        self._expected = with_kept_outputs(read.reference, digest)

    def __call__(self, one: DtypeMap, time_limit_s: float) -> Accuracy | None:
        """Return the accuracy of a map; None where the metric fails on its outputs.

        Args:
            one: The map.
            time_limit_s: Most seconds, so that fewer samples may be seen; 0 for no limit.
        """
        session = new_session(self._emulated(one))

        def outputs(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            return list(session.run(None, inputs))

        try:
            return compare_accuracy(
                self._metric,
                {CANDIDATE: outputs},
                self._expected,
                self._dataset,
                self._signature,
                most_samples=self._config.max_samples,
                time_limit_s=time_limit_s,
            )[CANDIDATE]
        except ConfigError:  # the float model has a number: outputs of this one are NaN or such
            return None

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
