"""The pipeline as one list; each stage is reused or run.

[calibrate -> [sensitivity]] -> convert -> tune -> build -> evaluate
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from tvmopt import host
from tvmopt.config import MEASURING, BuildConfig
from tvmopt.device import cuda_runtime
from tvmopt.kernels.cuda.toolchain import compiler
from tvmopt.stages.build import BUNDLE_DIR
from tvmopt.stages.evaluate import CANDIDATE, UNTUNED
from tvmopt.tracking.request import Request
from tvmopt.tracking.stage_run import Session, StageOutput, run_stage


def calibrate_stage(session: Session, request: Request, *, own: bool = False) -> StageOutput:
    """Collect the range of every activation."""
    inputs, digests = _model_and_data(request)
    config = request.calibrate
    return run_stage(session, "calibrate", config, config.to_dict(), digests, inputs, own=own)


def sensitivity_stage(session: Session, request: Request, *, own: bool = False) -> StageOutput:
    """Measure accuracy loss and gain of each layer; latencies hold for this machine."""
    inputs, digests = _model_and_data(request)
    config = request.sensitivity
    if "int8" in config.dtypes:
        calibrated = calibrate_stage(session, request)
        inputs["calibrate"], digests["calibrate"] = calibrated.folder, calibrated.digest
    identity = {**config.to_dict(), "host": host.fingerprint()}
    return run_stage(session, "sensitivity", config, identity, digests, inputs, own=own)


def convert_stage(session: Session, request: Request, *, own: bool = False) -> StageOutput:
    """Convert ONNX to Relax; after calibration for int8, after sensitivity for skip_layers=auto."""
    inputs, digests = _model_and_data(request)
    config = request.convert
    if request.needs_calibration:
        calibrated = calibrate_stage(session, request)
        inputs["calibrate"], digests["calibrate"] = calibrated.folder, calibrated.digest
    if request.needs_sensitivity:
        sensitive = sensitivity_stage(session, request)
        inputs["sensitivity"], digests["sensitivity"] = sensitive.folder, sensitive.digest
    identity = {**config.to_dict(), **_checked_here(request)}
    return run_stage(session, "convert", config, identity, digests, inputs, own=own)


def _model_and_data(request: Request) -> tuple[dict[str, Path], dict[str, str]]:
    inputs, digests = {"model": request.model}, {"model": request.model_digest}
    if request.data is not None:
        inputs["data"] = request.data
        digests["data"] = request.data_digest
    return inputs, digests


def tune_stage(
    session: Session,
    request: Request,
    converted: StageOutput,
    warm_start: StageOutput | None = None,
    *,
    own: bool = False,
    earlier: Sequence[Path] = (),
) -> StageOutput:
    """Find schedules; measured ones hold for this machine only.

    Records of the databases in ``earlier`` are not measured again; they do not change the digest.
    """
    identity = request.tune.to_dict()
    if request.tune.strategy in MEASURING:
        identity |= _machine(request)
    inputs = {"convert": converted.folder}
    digests = {"convert": converted.digest}
    if warm_start is not None:
        inputs["warm_start"] = warm_start.folder / "database"
        digests["warm_start"] = warm_start.digest
    if request.tune.strategy in MEASURING:
        inputs |= {f"earlier:{place}": path for place, path in enumerate(earlier)}
    return run_stage(
        session, "tune", request.tune, identity, digests, inputs, own=own,
        tags=_granularity(request),
    )  # fmt: skip


def build_stage(
    session: Session,
    request: Request,
    converted: StageOutput,
    tuned: StageOutput,
    *,
    own: bool = False,
) -> StageOutput:
    """Compile with the tuned schedules, and the default schedule where there is none."""
    config = request.build
    if request.tune.strategy == "none":
        config = dataclasses.replace(config, schedule="none")
    inputs = {"convert": converted.folder, "tune": tuned.folder}
    digests = {"convert": converted.digest, "tune": tuned.digest}
    return run_stage(
        session, "build", config, _build_identity(request, config), digests, inputs, own=own,
        tags=_granularity(request),
    )  # fmt: skip


def _granularity(request: Request) -> dict[str, str]:
    return {"tvmopt.granularity": request.tune.granularity}


def baseline_stage(session: Session, request: Request, converted: StageOutput) -> StageOutput:
    """Compile the baseline: TVM's own pipeline, without schedules of ours."""
    config = BuildConfig(request.name, request.build.target, schedule="none")
    inputs, digests = {"convert": converted.folder}, {"convert": converted.digest}
    identity = _build_identity(request, config)
    return run_stage(session, "build", config, identity, digests, inputs, label=UNTUNED)


def _build_identity(request: Request, config: BuildConfig) -> dict[str, object]:
    """Return the identity of a build: toolchain versions, and whether the library is checked."""
    cuda = {} if request.target.gpu is None else {"cuda": compiler.version()}
    return {**config.to_dict(), **cuda, **_checked_here(request)}


def _checked_here(request: Request) -> dict[str, object]:
    """Return whether a library for a GPU is checked here; a machine may get its GPU later."""
    return {} if request.target.gpu is None else {"checked": request.is_measurable}


def _machine(request: Request) -> dict[str, object]:
    """Return the identity of measurements: this machine, and its GPU for GPU targets."""
    gpu = {} if request.target.gpu is None else {"gpu": cuda_runtime.describe()}
    return {"host": host.fingerprint(), **gpu}


def evaluate_stage(
    session: Session,
    request: Request,
    converted: StageOutput,
    built: StageOutput,
    baseline: StageOutput | None,
    *,
    own: bool = False,
) -> StageOutput:
    """Measure accuracy and latency against ONNX Runtime; they hold for this machine only."""
    inputs = {"convert": converted.folder, f"bundle:{CANDIDATE}": built.folder / BUNDLE_DIR}
    digests = {"convert": converted.digest, CANDIDATE: built.digest}
    if baseline is not None and baseline.digest != built.digest:
        inputs[f"bundle:{UNTUNED}"] = baseline.folder / BUNDLE_DIR
        digests[UNTUNED] = baseline.digest
    if request.data is not None:
        inputs["data"] = request.data
        digests["data"] = request.data_digest
    identity = {**request.evaluate.to_dict(), **_machine(request)}
    return run_stage(session, "evaluate", request.evaluate, identity, digests, inputs, own=own)
