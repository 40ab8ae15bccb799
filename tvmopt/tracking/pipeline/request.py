"""A user's request, validated before any run is opened."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any, TypeVar

import onnx

from tvmopt import host
from tvmopt.choices import AUTO, U8S8_PAIRS
from tvmopt.config import (
    BuildConfig,
    CalibrateConfig,
    ConvertConfig,
    EvaluateConfig,
    SensitivityConfig,
    TuneConfig,
)
from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.digest import sha256_file
from tvmopt.errors import ConfigError, ModelError
from tvmopt.frontend.given_shapes import format_input_shapes, shapes_for
from tvmopt.frontend.given_sizes import parse_given_sizes
from tvmopt.frontend.load import load_onnx, model_digest
from tvmopt.frontend.shapes import Shapes, fix_input_shapes
from tvmopt.frontend.size_mix import parse_size_mix
from tvmopt.frontend.source_interface import interface_of
from tvmopt.frontend.trees.thresholds import has_large_trees
from tvmopt.parameters import groups
from tvmopt.parameters.command import Command
from tvmopt.parameters.declare import Group, words
from tvmopt.quantize import is_quantized
from tvmopt.quantize.roofline import analysed_dtypes
from tvmopt.remote import Board
from tvmopt.runtime.interface import SourceInterface
from tvmopt.search.shares import Share
from tvmopt.stages.asked_metric import check_labels
from tvmopt.stages.launch import UNLIMITED
from tvmopt.stages.metric_files import digest_of_file, with_whole_paths
from tvmopt.stages.proposed_shapes import proposed_shapes
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.flavor.in_child import model_layers
from tvmopt.tracking.pipeline.gpu_rules import check_gpu_request
from tvmopt.tracking.pipeline.time_shares import (
    ACCURACY,
    ANALYSIS,
    CALIBRATION,
    LATENCY,
    TUNING,
    within,
)
from tvmopt.tracking.registry.versions import check_name

_G = TypeVar("_G", bound=Group)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked(Command):
    """The parameters that make a request; the groups that a command lacks have their defaults."""

    model: groups.ModelParameters
    conversion: groups.ConversionParameters
    tf32: groups.Tf32Parameters
    quantization: groups.QuantizationParameters
    calibration: groups.CalibrationParameters
    analysis: groups.AnalysisParameters
    sensitivity_limit: groups.SensitivityLimitParameters
    accuracy: groups.AccuracyParameters
    tuning: groups.TuningParameters
    metric: groups.MetricParameters
    measurement: groups.MeasurementParameters
    board: groups.BoardParameters

    @classmethod
    def by(cls, command: Command) -> Asked:
        """Return what ``command`` asks for; its file has been read."""
        theirs = {k: v for k, v in command.groups().items() if k != "file"}
        parts: dict[str, Any] = {
            field: getattr(command, field) if theirs.get(field) is group else group()
            for field, group in cls.groups().items()
        }
        return cls(**parts)


@dataclasses.dataclass(frozen=True)
class Request:
    """A model, what is asked of it, and the configuration of every stage that follows.

    Attributes:
        name: Name of the model: of its experiment and its registered model.
        model: Path of the ONNX file.
        model_digest: sha256 of the model with its external data.
        input_shapes: Shape of every input, as text.
        data: Path of the evaluation data, or None.
        data_digest: sha256 of the data; empty without data.
        target: The exact target.
        asked: The parameters.
        quantised: Whether the model came quantised.
        has_large_trees: Whether an ensemble of trees is so large that short keys may pay.
        accuracy_time_s: Most seconds for the accuracy, of all contenders and the float model
            together; 0 for no limit.
        interface: Interface of the source model that was exported; None for an ONNX model.
        source_model_id: Id of that model in MLflow; empty if there is none.
        latency_time_s: Most seconds for the latency of one contender.
        starts_reference: Whether evaluation measures ONNX Runtime's cold start, too.
        is_only_compared: Whether nobody is to use the compiled model, a baseline: its numbers are
            checked on golden inputs alone.
        torch_source: File that says how to load the model of PyTorch that was exported, a peer on
            a GPU; None where there is none, or no PyTorch.
    """

    name: str
    model: Path
    model_digest: str
    input_shapes: str
    data: Path | None
    data_digest: str
    target: TargetSpec
    asked: Asked
    quantised: bool = False
    has_large_trees: bool = False
    accuracy_time_s: float = 0.0
    interface: SourceInterface | None = None
    source_model_id: str = ""
    latency_time_s: float = EvaluateConfig.time_limit_s
    starts_reference: bool = True
    is_only_compared: bool = False
    torch_source: Path | None = None

    def __post_init__(self) -> None:
        conversion, tuning = self.asked.conversion, self.asked.tuning
        if self.target.gpu is not None:
            check_gpu_request(
                self.target.gpu,
                layout=conversion.layout,
                dtype=conversion.dtype,
                strategy=tuning.strategy,
                rpc_tracker=self.asked.board.rpc_tracker,
            )
        lacking = self.target.why_not_here()
        if lacking and tuning.strategy == "metaschedule" and self.board is None:
            raise ConfigError(
                f"strategy 'metaschedule' must measure on the target, but {lacking}; give "
                "rpc_tracker and rpc_key of a board, or use strategy=default"
            )
        _ = self.tune, self.convert, self.sensitivity, self.evaluate  # each checks its values
        if self.needs_calibration:
            _ = self.calibrate

    def changed(self, **values: Any) -> Request:
        """Return the request with other values of some parameters.

        Raises:
            ConfigError: When a value breaks its rule.
        """
        return dataclasses.replace(self, asked=Asked.of({**self.asked.values(), **values}))

    # -- configurations of the stages; what a stage does not use must not change its digest

    @functools.cached_property
    def calibrate(self) -> CalibrateConfig:
        """Return the configuration of the calibrate stage."""
        asked = self.asked.calibration.values()
        asked["calibration_time"] = self._within(CALIBRATION, asked["calibration_time"])
        return CalibrateConfig(self.input_shapes, self.quantization == U8S8_PAIRS, **asked)

    @functools.cached_property
    def sensitivity(self) -> SensitivityConfig:
        """Return the configuration of the sensitivity stage."""
        dtype = self.asked.conversion.dtype
        return SensitivityConfig(
            self.input_shapes,
            self.target.to_dict(),
            words(self.asked.analysis.dtypes) or analysed_dtypes(dtype, self.target),
            self.quantization,
            layer_dtypes=dtype == AUTO,
            max_accuracy_drop=self.max_accuracy_drop,
            sensitivity_time=self._within(ANALYSIS, self.asked.sensitivity_limit.sensitivity_time),
            metric_sha256=self._metric_sha256,
            **self.asked.metric.values(),
        )

    @functools.cached_property
    def convert(self) -> ConvertConfig:
        """Return the configuration of the convert stage."""
        asked = {**self.asked.conversion.values(), **self.asked.tf32.values()}
        config = ConvertConfig(
            self.input_shapes, self.target.to_dict(), is_checked=not self.is_only_compared, **asked
        )
        if config.dtype != AUTO:
            config = dataclasses.replace(config, dtype_map=0)
        if not config.may_quantise:
            return config
        return dataclasses.replace(config, quantization=self.quantization)

    @functools.cached_property
    def tune(self) -> TuneConfig:
        """Return the configuration of the tune stage."""
        asked = {**self.asked.tuning.values(), **self.asked.board.values()}
        asked["time_budget"] = self._within(TUNING, asked["time_budget"])
        return TuneConfig(self.target.to_dict(), **asked)

    def _within(self, share: Share, limit_s: float) -> float:
        """Return a time limit, within a share of the budget where that is divided."""
        return within(share, self.divided_budget_s, limit_s)

    @functools.cached_property
    def build(self) -> BuildConfig:
        """Return the configuration of the build stage."""
        untuned = self.asked.tuning.strategy == "none"
        return BuildConfig(
            self.name,
            self.target.to_dict(),
            "none" if untuned else BuildConfig.schedule,
            plants_non_finite=not self.is_only_compared,
        )

    @functools.cached_property
    def baseline(self) -> BuildConfig:
        """Return the configuration of the build of TVM's own pipeline, without our schedules."""
        is_one = len(parse_given_sizes(self.input_shapes).sizes) == 1
        measures_all = is_one or bool(self.asked.measurement.size_mix)
        is_candidate = self.build.schedule == "none"  # the same build, unless it has fewer sizes
        return dataclasses.replace(
            self.build,
            schedule="none",
            all_sizes=measures_all,
            plants_non_finite=is_candidate and self.build.plants_non_finite,
        )

    @functools.cached_property
    def evaluate(self) -> EvaluateConfig:
        """Return the configuration of the evaluate stage."""
        asked = {
            **self.asked.metric.values(),
            **self.asked.measurement.values(),
            **self.asked.board.values(),
        }
        on_gpu = self.target.gpu is not None
        threads = self.asked.model.threads or host.usable_cores() if on_gpu else self.target.threads
        return EvaluateConfig(
            threads,
            metric_sha256=self._metric_sha256,
            accuracy_time_s=self._within(ACCURACY, self.accuracy_time_s),
            time_limit_s=self._within(LATENCY, self.latency_time_s),
            starts_reference=self.starts_reference,
            **asked,
        )

    @functools.cached_property
    def _metric_sha256(self) -> str:
        """Return the hash of the file that the metric names; empty without one."""
        return digest_of_file(self.asked.metric)

    # -- what follows from the parameters

    @property
    def max_accuracy_drop(self) -> float:
        """Return the largest accuracy drop that may be promoted."""
        return self.asked.accuracy.max_accuracy_drop

    @property
    def divided_budget_s(self) -> float:
        """Return the seconds that the stages of the command share; 0 where tuning alone has them.

        They share them where layers may become int8, since calibration and analysis take longer
        than tuning.
        """
        is_divided = self.convert.may_quantise and not self.quantised
        return self.asked.tuning.time_budget if is_divided else 0.0

    @functools.cached_property
    def quantization(self) -> str:
        """Return the operand dtypes of int8."""
        asked = self.asked.quantization.quantization
        return self.target.int8_operands if asked == AUTO else asked

    @property
    def board(self) -> Board | None:
        """Return the board to measure on; None for this machine."""
        return Board.parse(self.asked.board.rpc_tracker, self.asked.board.rpc_key)

    @property
    def is_measurable(self) -> bool:
        """Return whether this machine or a board can run the compiled model."""
        return self.board is not None or not self.target.missing_on_host()

    @property
    def needs_calibration(self) -> bool:
        """Return whether conversion needs calibration: int8 of a float model."""
        return self.convert.may_quantise and not self.quantised

    @property
    def needs_sensitivity(self) -> bool:
        """Return whether conversion needs what the analysis proposes: an ``auto`` value."""
        return self.convert.needs_analysis and not self.quantised


def make_request(model: Path, allowance: Allowance = UNLIMITED, **values: Any) -> Request:
    """Return the request for a model file; ``values`` are parameters by name.

    Raises:
        ConfigError, ModelError: One line: the rule, the value got, what to do.
    """
    return request_of(model, Asked.of(values), allowance)


def request_of(
    model: Path, asked: Asked, allowance: Allowance = UNLIMITED, rows: Path | None = None
) -> Request:
    """Check every value and the model itself.

    Args:
        model: The model's file.
        asked: The parameters.
        allowance: Bounds the process that lists the layers of the model, where ``skip_layers``
            or ``keep_dtype`` names some.
        rows: The data of an exported model, in place of the parameter ``data``.

    Raises:
        ConfigError, ModelError: One line: the rule, the value got, what to do.
    """
    of_model = asked.model
    asked = dataclasses.replace(asked, metric=with_whole_paths(asked.metric))
    data = rows or _existing_data(of_model.data)
    text = proposed_shapes(of_model.input_shapes, model, data)
    given = parse_given_sizes(text)
    if mix := asked.measurement.size_mix:
        parse_size_mix(mix, given.dimensions, [size.values for size in given.sizes])
    name = check_name(of_model.name or name_of(str(model)))
    target = resolve_target(of_model.target, of_model.threads)
    request = Request(
        name=name,
        model=model,
        model_digest="",
        input_shapes="",
        data=data,
        data_digest="",
        target=target,
        asked=asked,
    )
    loaded = load_onnx(model)
    interface = interface_of(loaded)
    # All before the first is fixed, which changes the model.
    check_labels(asked.metric.metric, loaded, data)
    sizes = [shapes_for(loaded, size.text) for size in given.sizes]
    largest, *others = [_fixed_shapes(loaded, shapes) for shapes in sizes]
    fixed = text if others else format_input_shapes(largest)
    _check_names(asked.conversion, model, fixed, allowance)
    return dataclasses.replace(
        request,
        input_shapes=fixed,
        model_digest=model_digest(model),
        data_digest=sha256_file(data) if data else "",
        quantised=is_quantized(loaded),
        has_large_trees=has_large_trees(loaded),
        interface=interface,
    )


def _fixed_shapes(model: onnx.ModelProto, shapes: Shapes) -> Shapes:
    fixed = fix_input_shapes(model, shapes)
    if not fixed:
        raise ModelError("model must have an input to be tuned, but its graph has none")
    return fixed


def _existing_data(data: str) -> Path | None:
    path = Path(data).expanduser().resolve() if data else None
    if path is not None and not path.is_file():
        raise ConfigError(
            f"data must be an existing .npz or .npy file, but there is none at '{path}'"
        )
    return path


def _check_names(
    asked: groups.ConversionParameters, model: Path, input_shapes: str, allowance: Allowance
) -> None:
    """Refuse patterns that match no layer now: a typo must not wait for calibration."""
    if asked.skip_layers.named or asked.keep_dtype:
        layers = model_layers(model, input_shapes, allowance)
        asked.skip_layers.named.resolve(layers)
        asked.keep_dtype.resolve(layers, "keep_dtype")


def name_of(model: str) -> str:
    """Return the default name of a model: its file's, or its MLflow model's.

    The compiled model must not become a version of the registered ONNX model it was made from.
    """
    registered = re.match(r"models:/+([^/@]+)", model)
    stem = f"{registered.group(1)}-compiled" if registered else Path(model).stem
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "model"
    return name[:200]
