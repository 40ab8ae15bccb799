"""Identity of a search: facts that all sessions and workers of a study share."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvmopt import host
from tvmopt.device import cuda_runtime
from tvmopt.digest import code_digest
from tvmopt.errors import ConfigError
from tvmopt.parameters.commands import SearchCommand
from tvmopt.search.declared import Declared
from tvmopt.search.limits import Limits
from tvmopt.tracking.pipeline.request import Asked, Request

_ANALYSIS_LIMITS = ("calibration_time", "sensitivity_time")


def portable(request: Request) -> dict[str, Any]:
    """Return parameters that reproduce the request of a search in another process."""
    shared = [g for g in SearchCommand.groups().values() if g in Asked.groups().values()]
    names = {one.name for group in shared for one in group.parameters()} - {"config"}
    found = {name: value for name, value in request.asked.values().items() if name in names}
    source = request.asked.model.model
    if ":/" not in source:  # a path; else MLflow knows where it is
        found["model"] = str(Path(source).resolve())
    found["data"] = str(request.data or "")
    if request.interface is not None:  # rows were made of the user's table, here as there
        given = request.asked.model.data
        found["data"] = str(Path(given).expanduser().resolve()) if given else ""
    found["name"] = request.name
    found["threads"] = request.evaluate.threads  # a GPU target has 1, ONNX Runtime has more
    return found


def calibrated_as(request: Request, declaration: Mapping[str, Any]) -> Request:
    """Return the request with the time limits of the analysis that its study has settled.

    The calibration of every int8 trial, and the dtypes of layers of every ``auto`` trial, are the
    ones of the analysis, whatever the budget is now.
    """
    settled = declaration["request"]
    return request.changed(**{name: settled[name] for name in _ANALYSIS_LIMITS if name in settled})


def with_limits_of(request: Request, analysed: Request) -> Request:
    """Return the request with the time limits of the analysis that was made for it."""
    limits = {**analysed.asked.calibration.values(), **analysed.asked.sensitivity_limit.values()}
    return request.changed(**{name: limits[name] for name in _ANALYSIS_LIMITS})


def facts_of(
    request: Request, limits: Limits, objectives: tuple[str, ...], declared: Declared
) -> dict[str, Any]:
    """Return the facts that must be equal for a study to resume."""
    return {
        "model_sha256": request.model_digest,
        "data_sha256": request.data_digest,
        "input_shapes": request.convert.input_shapes,
        "target": request.target.to_dict(),
        "host": host.fingerprint(),
        "quantization": request.sensitivity.quantization,
        "calibrate": request.calibrate.to_dict(),
        "evaluate": request.evaluate.to_dict(),
        "limits": dataclasses.asdict(limits),
        "objectives": list(objectives),
        "declared": declared.to_dict(),
        "code": code_digest(),
        **({"allow_tf32": True} if request.convert.allow_tf32 else {}),
        **_gpu_facts(request),
    }


def _gpu_facts(request: Request) -> dict[str, str]:
    """Return the GPU and its driver; empty for a CPU target."""
    return {} if request.target.gpu is None else {"gpu": cuda_runtime.describe()}


def check_same(declared: dict[str, Any], request: Request, study: str) -> None:
    """Refuse to work on a study with another model, other data, another machine or other code.

    Raises:
        ConfigError: Names what is different.
    """
    ours = {
        "model_sha256": request.model_digest,
        "data_sha256": request.data_digest,
        "target": request.target.to_dict(),
        "host": host.fingerprint(),
        "code": code_digest(),
        **_gpu_facts(request),
    }
    plain = json.loads(json.dumps(ours))
    differing = [key for key, value in plain.items() if declared.get(key) != value]
    if differing:
        raise ConfigError(
            f"a worker of study {study!r} must have the model, the data, the kind of machine and "
            f"the version of tvmopt that the study was begun with, but has another "
            f"{', '.join(differing)}"
            "; start it like the study, or begin another study"
        )
