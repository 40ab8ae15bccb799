"""The commands, each a composition of parameter groups; their docstrings are their help."""

from __future__ import annotations

import dataclasses

from tvmopt.parameters import groups
from tvmopt.parameters.command import Command


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageCommand(Command):
    """Base of the commands that run stages of the pipeline."""

    limits: groups.StageLimitParameters
    reuse: groups.ReuseParameters
    dry_run: groups.DryRunParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class MainCommand(StageCommand):
    """Take an ONNX model to a registered, compiled model; the bundled example by default."""

    model: groups.ModelParameters
    conversion: groups.ConversionParameters
    tf32: groups.Tf32Parameters
    quantization: groups.QuantizationParameters
    calibration: groups.CalibrationParameters
    accuracy: groups.AccuracyParameters
    tuning: groups.TuningParameters
    metric: groups.MetricParameters
    measurement: groups.MeasurementParameters
    board: groups.BoardParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class SensitivityCommand(StageCommand):
    """Measure accuracy loss and gain of each layer in each dtype, and propose skip sets."""

    model: groups.ModelParameters
    analysis: groups.AnalysisParameters
    sensitivity_limit: groups.SensitivityLimitParameters
    quantization: groups.QuantizationParameters
    calibration: groups.CalibrationParameters
    accuracy: groups.AccuracyParameters
    metric: groups.MetricParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertCommand(StageCommand):
    """Convert and check a model; return the run of the convert stage."""

    model: groups.ModelParameters
    conversion: groups.ConversionParameters
    tf32: groups.Tf32Parameters
    quantization: groups.QuantizationParameters
    calibration: groups.CalibrationParameters
    accuracy: groups.AccuracyParameters
    metric: groups.MetricParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneCommand(StageCommand):
    """Find schedules for a model; run missing stages before it."""

    model: groups.ModelParameters
    conversion: groups.ConversionParameters
    tf32: groups.Tf32Parameters
    quantization: groups.QuantizationParameters
    calibration: groups.CalibrationParameters
    accuracy: groups.AccuracyParameters
    metric: groups.MetricParameters
    tuning: groups.TuningParameters
    board: groups.BoardParameters
    warm_start: groups.WarmStartParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildCommand(StageCommand):
    """Compile a model and register it as a candidate; run missing stages before it."""

    model: groups.ModelParameters
    conversion: groups.ConversionParameters
    tf32: groups.Tf32Parameters
    quantization: groups.QuantizationParameters
    calibration: groups.CalibrationParameters
    accuracy: groups.AccuracyParameters
    metric: groups.MetricParameters
    tuning: groups.TuningParameters
    board: groups.BoardParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateCommand(StageCommand):
    """Measure a model against ONNX Runtime; run missing stages before it."""

    model: groups.ModelParameters
    conversion: groups.ConversionParameters
    tf32: groups.Tf32Parameters
    quantization: groups.QuantizationParameters
    calibration: groups.CalibrationParameters
    accuracy: groups.AccuracyParameters
    tuning: groups.TuningParameters
    metric: groups.MetricParameters
    measurement: groups.MeasurementParameters
    board: groups.BoardParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchCommand(Command):
    """Find the fastest artifact of a model that keeps to the limits; goes on where it was left."""

    model: groups.ModelParameters
    space: groups.SearchSpaceParameters
    tf32: groups.Tf32Parameters
    quantization: groups.QuantizationParameters
    calibration: groups.CalibrationParameters
    sensitivity_limit: groups.SensitivityLimitParameters
    accuracy: groups.AccuracyParameters
    search_limits: groups.SearchLimitParameters
    budget: groups.BudgetParameters
    trial_limits: groups.TrialLimitParameters
    metric: groups.MetricParameters
    measurement: groups.MeasurementParameters
    study: groups.StudyParameters
    dry_run: groups.DryRunParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerCommand(Command):
    """Join a study that a search has begun, and run trials of it."""

    join: groups.JoinParameters
    trial_limits: groups.TrialLimitParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromoteCommand(Command):
    """Re-check a version on held-out data and give it an alias; refuse with the reason."""

    candidate: groups.CandidateParameters
    accuracy: groups.AccuracyParameters
    metric: groups.MetricParameters
    board: groups.BoardParameters
    limits: groups.StageLimitParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileCommand(Command):
    """Time every kernel of a registered model, and say where the time goes and why."""

    version: groups.VersionParameters
    profile: groups.ProfileParameters
    limits: groups.StageLimitParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class PullCommand(Command):
    """Download a registered model to a folder that runs without MLflow."""

    version: groups.VersionParameters
    output: groups.OutputParameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeCommand(Command):
    """Serve a registered model over HTTP."""

    version: groups.VersionParameters
    server: groups.ServerParameters


COMMANDS: dict[str, type[Command]] = {
    "main": MainCommand,
    "sensitivity": SensitivityCommand,
    "convert": ConvertCommand,
    "tune": TuneCommand,
    "build": BuildCommand,
    "evaluate": EvaluateCommand,
    "search": SearchCommand,
    "worker": WorkerCommand,
    "profile": ProfileCommand,
    "promote": PromoteCommand,
    "pull": PullCommand,
    "serve": ServeCommand,
}
"""The commands by the name of their entry point."""
