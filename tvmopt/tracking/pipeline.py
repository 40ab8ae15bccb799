"""The pipeline, as one list: convert -> tune -> build -> evaluate, each found again or done."""

from __future__ import annotations

import dataclasses

from tvmopt import host
from tvmopt.config import BuildConfig
from tvmopt.stages.build import BUNDLE_DIR
from tvmopt.stages.evaluate import CANDIDATE, UNTUNED
from tvmopt.tracking.request import Request
from tvmopt.tracking.stage_run import Session, StageOutput, run_stage


def convert_stage(session: Session, request: Request, *, own: bool = False) -> StageOutput:
    """ONNX -> Relax."""
    inputs = {"model": request.model}
    digests = {"model": request.model_digest}
    if request.data is not None:
        inputs["data"] = request.data
        digests["data"] = request.data_digest
    config = request.convert
    return run_stage(session, "convert", config, config.to_dict(), digests, inputs, own=own)


def tune_stage(
    session: Session,
    request: Request,
    converted: StageOutput,
    warm_start: StageOutput | None = None,
    *,
    own: bool = False,
) -> StageOutput:
    """Find schedules; measured ones are good for this machine only."""
    identity = request.tune.to_dict()
    if request.tune.strategy == "metaschedule":
        identity["host"] = host.fingerprint()
    inputs = {"convert": converted.folder}
    digests = {"convert": converted.digest}
    if warm_start is not None:
        inputs["warm_start"] = warm_start.folder / "database"
        digests["warm_start"] = warm_start.digest
    return run_stage(session, "tune", request.tune, identity, digests, inputs, own=own)


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
    return run_stage(session, "build", config, config.to_dict(), digests, inputs, own=own)


def baseline_stage(session: Session, request: Request, converted: StageOutput) -> StageOutput:
    """Compile as TVM's own pipeline does, without any schedule: the baseline."""
    config = BuildConfig(request.name, request.build.target, schedule="none")
    inputs, digests = {"convert": converted.folder}, {"convert": converted.digest}
    return run_stage(
        session, "build", config, config.to_dict(), digests, inputs, label=UNTUNED
    )


def evaluate_stage(
    session: Session,
    request: Request,
    converted: StageOutput,
    built: StageOutput,
    baseline: StageOutput | None,
    *,
    own: bool = False,
) -> StageOutput:
    """Accuracy and latency beside ONNX Runtime; numbers of this machine only."""
    inputs = {"convert": converted.folder, f"bundle:{CANDIDATE}": built.folder / BUNDLE_DIR}
    digests = {"convert": converted.digest, CANDIDATE: built.digest}
    if baseline is not None and baseline.digest != built.digest:
        inputs[f"bundle:{UNTUNED}"] = baseline.folder / BUNDLE_DIR
        digests[UNTUNED] = baseline.digest
    if request.data is not None:
        inputs["data"] = request.data
        digests["data"] = request.data_digest
    identity = {**request.evaluate.to_dict(), "host": host.fingerprint()}
    return run_stage(
        session, "evaluate", request.evaluate, identity, digests, inputs, own=own
    )
