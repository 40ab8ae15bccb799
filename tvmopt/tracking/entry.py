"""Shared steps of entry points: check parameters, open the run, register the model."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tvmopt.errors import ConfigError
from tvmopt.stages.build import BUNDLE_DIR
from tvmopt.tracking import registry
from tvmopt.tracking.allowance import stage_allowance
from tvmopt.tracking.command import command
from tvmopt.tracking.model_source import local_model
from tvmopt.tracking.request import EXAMPLE, Request, make_request, name_of
from tvmopt.tracking.runs import link_model, log_dataset
from tvmopt.tracking.stage_run import Session, StageOutput
from tvmopt.tracking.store import open_store

MEASURED_TAGS = (
    "latency_ms_p50", "latency_ms_p99", "accuracy", "accuracy_drop", "library_bytes",
    "peak_memory_mb",
)  # fmt: skip
"""Metrics that every version carries as tags."""
# Parameters that bound stages; they change no result.
_LIMITS = ("stage_timeout", "memory_limit")


def with_example(params: dict[str, Any]) -> dict[str, Any]:
    """Return ``params``; the bundled example's when no model is given."""
    if params["model"]:
        return params
    if params["data"] or params["input_shapes"]:
        raise ConfigError("data and input_shapes need a model, but model is empty")
    root = Path(__file__).parents[2]
    if not (root / EXAMPLE["model"]).is_file():
        raise ConfigError("model must be given: the bundled example is not in this installation")
    return {
        **params,
        "model": str(root / EXAMPLE["model"]),
        "data": str(root / EXAMPLE["data"]),
        "input_shapes": EXAMPLE["input_shapes"],
        "name": params["name"] or EXAMPLE["name"],
    }


def checked_request(params: dict[str, Any]) -> Request:
    """Check the parameters; an MLflow model is downloaded first."""
    values = {k: v for k, v in params.items() if k not in ("model", "no_cache", *_LIMITS)}
    if "://" not in params["model"] and ":/" in params["model"]:
        open_store()
    # Kept until the process ends: child processes read the model from here.
    fetched = tempfile.mkdtemp(prefix="tvmopt-model-")
    atexit.register(shutil.rmtree, fetched, ignore_errors=True)
    model = local_model(params["model"], Path(fetched))
    values["name"] = values["name"] or name_of(params["model"])
    return make_request(model, **values, allowance=stage_allowance(params))


@contextmanager
def open_session(
    entry: str, request: Request, params: Mapping[str, Any], no_cache: bool = False
) -> Iterator[Session]:
    """Open the run of a command, and log its resolved parameters and its data."""
    resolved = {
        **params,
        "name": request.name,
        "target": request.target.device,
        "threads": request.evaluate.threads,
        "input_shapes": request.convert.input_shapes,
        "data": str(request.data or ""),
    }
    resolved.pop("no_cache", None)
    allowance = stage_allowance(params)
    with command(
        entry,
        request.name,
        resolved,
        use_cache=not no_cache,
        allow=lambda: allowance,
        threads=request.evaluate.threads,
    ) as session:
        if request.data is not None:
            log_dataset(session.client, session.run_id, request.data, request.data_digest, entry)
        yield session


def register_built(
    session: Session,
    request: Request,
    converted: StageOutput,
    built: StageOutput,
    measured: StageOutput | None,
    more: Mapping[str, str] | None = None,
) -> registry.Registered:
    """Register a built model as a version, with its facts as tags."""
    tags = {
        "strategy": request.tune.strategy,
        "granularity": request.tune.granularity,
        "layout": request.convert.layout,
        "dtype": request.convert.dtype,
        "skip_layers": request.convert.skip_layers,
        "build_run": built.run_id,
        "convert_run": converted.run_id,
        "model_sha256": request.model_digest,
        "input_shapes": request.convert.input_shapes,
    }
    if measured is not None:
        tags["evaluate_run"] = measured.run_id
        found = {k: measured.metrics[k] for k in MEASURED_TAGS if k in measured.metrics}
        tags |= {key: f"{value:.6g}" for key, value in found.items()}
    bundle = built.folder / BUNDLE_DIR
    registered = registry.register(
        session.client, request.name, bundle, built.run_id, {**tags, **(more or {})}
    )
    link_model(session.client, session.run_id, registered.model_id)
    return registered
