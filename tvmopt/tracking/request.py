"""A user's request, validated before any run is opened."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from tvmopt import host
from tvmopt.config import (
    AUTO,
    GRANULARITIES,
    LOW_DTYPES,
    MEASURING,
    QUANTIZATIONS,
    BuildConfig,
    CalibrateConfig,
    ConvertConfig,
    EvaluateConfig,
    SensitivityConfig,
    TuneConfig,
    at_least,
    one_of,
)
from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.digest import sha256_file
from tvmopt.errors import ConfigError
from tvmopt.frontend.load import load_onnx, model_digest
from tvmopt.frontend.shapes import fix_input_shapes, format_input_shapes, parse_input_shapes
from tvmopt.quantize import is_quantized
from tvmopt.remote import Board
from tvmopt.stages.launch import UNLIMITED
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.gpu_rules import check_gpu_request
from tvmopt.tracking.in_child import model_layers
from tvmopt.tracking.registry import check_name
from tvmopt.transform.skip import parse_skip_layers, resolve_skip_layers

EXAMPLE = {
    "model": "examples/digits_cnn.onnx",
    "data": "examples/digits_eval.npz",
    "input_shapes": "image:1x1x8x8",
    "name": "digits-cnn",
}


@dataclasses.dataclass(frozen=True)
class Request:
    """A model, and the configuration of every stage.

    Attributes:
        name: Name of the model: of its experiment and its registered model.
        model: Path of the ONNX file.
        model_digest: sha256 of the model with its external data.
        data: Path of the evaluation data, or None.
        data_digest: sha256 of the data; empty without data.
        target: The exact target.
        calibrate: Configuration of the calibrate stage.
        sensitivity: Configuration of the sensitivity stage.
        convert: Configuration of the convert stage.
        tune: Configuration of the tune stage.
        build: Configuration of the build stage.
        evaluate: Configuration of the evaluate stage.
        max_accuracy_drop: Largest accuracy drop that may be promoted.
        quantised: Whether the model came quantised.
    """

    name: str
    model: Path
    model_digest: str
    data: Path | None
    data_digest: str
    target: TargetSpec
    calibrate: CalibrateConfig
    sensitivity: SensitivityConfig
    convert: ConvertConfig
    tune: TuneConfig
    build: BuildConfig
    evaluate: EvaluateConfig
    max_accuracy_drop: float
    quantised: bool = False

    @property
    def board(self) -> Board | None:
        """Return the board to measure on; None for this machine."""
        return Board.parse(self.evaluate.rpc_tracker, self.evaluate.rpc_key)

    @property
    def is_measurable(self) -> bool:
        """Return whether this machine or a board can run the compiled model."""
        return self.board is not None or not self.target.missing_on_host()

    @property
    def needs_calibration(self) -> bool:
        """Return whether conversion needs calibration: int8 of a float model."""
        return self.convert.dtype == "int8" and not self.quantised

    @property
    def needs_sensitivity(self) -> bool:
        """Return whether conversion needs a proposed skip set (``skip_layers=auto``)."""
        wanted = AUTO in parse_skip_layers(self.convert.skip_layers)
        return wanted and self.convert.dtype != "float32" and not self.quantised


def make_request(
    model: Path,
    *,
    name: str = "",
    input_shapes: str = "",
    data: str = "",
    target: str = "host",
    threads: int = 0,
    layout: str = "auto",
    dtype: str = "float32",
    dtypes: str = "",
    skip_layers: str = "",
    quantization: str = "auto",
    calibration: str = "minmax",
    calibration_samples: int = 100,
    sensitivity_time: float = 120.0,
    strategy: str = "fast",
    granularity: str = "subgraph",
    topk: int = 20,
    trials: int = 64,
    time_budget: float = 0.0,
    max_accuracy_drop: float = 0.01,
    metric: str = "auto",
    repeats: int = 200,
    rpc_tracker: str = "",
    rpc_key: str = "",
    allowance: Allowance = UNLIMITED,
) -> Request:
    """Check every value and the model itself.

    ``allowance`` bounds the process that lists the layers of the model, where ``skip_layers`` names
    some. The other parameters are as in MLproject.

    Raises:
        ConfigError, ModelError: One line: the rule, the value got, what to do.
    """
    at_least("threads", threads, 0)
    at_least("max_accuracy_drop", max_accuracy_drop, 0)
    shapes = parse_input_shapes(input_shapes)
    name = check_name(name or name_of(str(model)))
    spec = resolve_target(target, threads)
    quantization = _quantization(quantization, spec)
    if spec.gpu is not None:
        check_gpu_request(
            spec.gpu,
            layout=layout,
            dtype=dtype,
            strategy=strategy,
            granularity=granularity,
            rpc_tracker=rpc_tracker,
        )
    described = spec.to_dict()
    data_path = _existing_data(data)
    board: dict[str, Any] = {"rpc_tracker": rpc_tracker, "rpc_key": rpc_key}
    cores = spec.threads if spec.gpu is None else threads or host.usable_cores()
    evaluate = EvaluateConfig(threads=cores, metric=metric, repeats=repeats, **board)
    tune = TuneConfig(
        described,
        strategy,
        **_tuning(strategy, granularity, topk, trials, time_budget),
        **(board if strategy in MEASURING else {}),
    )
    _check_measurable(strategy, spec, rpc_tracker)
    loaded = load_onnx(model)
    fixed = format_input_shapes(fix_input_shapes(loaded, shapes))
    skipped = _skip_layers(skip_layers, model, fixed, allowance)
    # What a conversion does not use must not change the digest of its result.
    used = quantization if dtype == "int8" else "u8s8"
    convert = ConvertConfig(fixed, described, layout, dtype, skipped, used)
    analysed = tuple(filter(None, (d.strip() for d in dtypes.split(","))))
    sensitivity = SensitivityConfig(
        fixed,
        described,
        analysed or (LOW_DTYPES if dtype == "float32" else (dtype,)),
        quantization,
        max_accuracy_drop,
        time_limit_s=sensitivity_time,
    )
    return Request(
        name=name,
        model=model,
        model_digest=model_digest(model),
        data=data_path,
        data_digest=sha256_file(data_path) if data_path else "",
        target=spec,
        calibrate=CalibrateConfig(fixed, calibration, calibration_samples),
        sensitivity=sensitivity,
        convert=convert,
        tune=tune,
        build=BuildConfig(name, described),
        evaluate=evaluate,
        max_accuracy_drop=max_accuracy_drop,
        quantised=is_quantized(loaded),
    )


def _quantization(asked: str, target: TargetSpec) -> str:
    """Return the operand dtypes of int8; wgmma takes two operands of one dtype only."""
    one_of("quantization", asked, (AUTO, *QUANTIZATIONS))
    if asked != AUTO:
        return asked
    return "s8s8" if target.gpu is not None and target.gpu.has_wgmma else "u8s8"


def _existing_data(data: str) -> Path | None:
    path = Path(data).expanduser().resolve() if data else None
    if path is not None and not path.is_file():
        raise ConfigError(
            f"data must be an existing .npz or .npy file, but there is none at '{path}'"
        )
    return path


def _check_measurable(strategy: str, target: TargetSpec, rpc_tracker: str) -> None:
    lacking = target.why_not_here() if strategy == "metaschedule" and not rpc_tracker else ""
    if lacking:
        raise ConfigError(
            f"strategy 'metaschedule' must measure on the target, but {lacking}; give rpc_tracker "
            "and rpc_key of a board, or use strategy=default"
        )


def _skip_layers(text: str, model: Path, input_shapes: str, allowance: Allowance) -> str:
    """Return the patterns in one form, resolved now: a typo must not wait for calibration."""
    patterns = parse_skip_layers(text)
    named = [pattern for pattern in patterns if pattern != AUTO]
    if named:
        resolve_skip_layers(model_layers(model, input_shapes, allowance), named)
    return ",".join(map(str, patterns))


def _tuning(
    strategy: str, granularity: str, topk: int, trials: int, time_budget: float
) -> dict[str, Any]:
    # What the strategy does not use must not change the digest of its result.
    one_of("granularity", granularity, GRANULARITIES)
    at_least("topk", topk, 1)
    at_least("trials", trials, 0)
    at_least("time_budget", time_budget, 0)
    used: dict[str, Any] = {}
    if strategy in MEASURING:
        used = {"granularity": granularity, "time_budget_s": float(time_budget)}
    if strategy == "metaschedule":
        used["trials"] = trials
    if strategy == "fast":
        used["topk"] = topk
    return used


def name_of(model: str) -> str:
    """Return the default name of a model: its file's, or its MLflow model's.

    The compiled model must not become a version of the registered ONNX model it was made from.
    """
    registered = re.match(r"models:/+([^/@]+)", model)
    stem = f"{registered.group(1)}-compiled" if registered else Path(model).stem
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "model"
    return name[:200]
