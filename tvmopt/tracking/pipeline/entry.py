"""Shared steps of entry points: check parameters, open the run, register the model."""

from __future__ import annotations

import atexit
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import tvmopt
from tvmopt.errors import ConfigError
from tvmopt.parameters.groups import ModelParameters
from tvmopt.stages.build import BUNDLE_DIR
from tvmopt.stages.torch_peer import torch_version
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.pipeline.request import Asked, Request, name_of, request_of
from tvmopt.tracking.pipeline.source import SOURCE_LATENCY_S, TORCH_FILE, export_source
from tvmopt.tracking.registry import versions as registry
from tvmopt.tracking.store.command import command
from tvmopt.tracking.store.mlflow_store import open_store
from tvmopt.tracking.store.model_source import SavedSource, local_model
from tvmopt.tracking.store.runs import link_model, link_source, log_dataset
from tvmopt.tracking.store.stage_run import Session, StageOutput

EXAMPLE = {
    "model": "examples/digits_cnn.onnx",
    "data": "examples/digits_eval.npz",
    "input_shapes": "image:1x1x8x8",
    "name": "digits-cnn",
}
"""The bundled example; paths are relative to the package."""

MEASURED_TAGS = (
    "latency_ms_p50", "latency_ms_p99", "accuracy", "accuracy_drop", "library_bytes",
    "peak_memory_mb",
)  # fmt: skip
"""Metrics that every version carries as tags."""


def with_example(given: ModelParameters) -> ModelParameters:
    """Return ``given``; the bundled example's parameters when no model is given.

    Raises:
        ConfigError: When there is data without a model, or no example in this installation.
    """
    if given.model:
        return given
    if given.data or given.input_shapes:
        raise ConfigError(
            "data and input_shapes need a model, but model is empty; give model, or neither of both"
        )
    root = Path(tvmopt.__file__).parent
    if not (root / EXAMPLE["model"]).is_file():
        raise ConfigError(
            "model must be given: the bundled example is not in this installation"
            "; give an ONNX file as model"
        )
    return dataclasses.replace(
        given,
        model=str(root / EXAMPLE["model"]),
        data=str(root / EXAMPLE["data"]),
        input_shapes=EXAMPLE["input_shapes"],
        name=given.name or EXAMPLE["name"],
    )


def checked_request(asked: Asked, allowance: Allowance) -> Request:
    """Check the parameters; an MLflow model is downloaded first.

    Args:
        asked: The parameters.
        allowance: Bounds the process that lists the layers of the model.

    Raises:
        ConfigError, ModelError: One line: the rule, the value got, what to do.
    """
    asked = dataclasses.replace(asked, model=with_example(asked.model))
    source = asked.model.model
    if "://" not in source and ":/" in source:
        open_store()
    # Kept until the process ends: child processes read the model from here.
    fetched = tempfile.mkdtemp(prefix="tvmopt-model-")
    atexit.register(shutil.rmtree, fetched, ignore_errors=True)
    file = local_model(source, Path(fetched))
    named = dataclasses.replace(asked.model, name=asked.model.name or name_of(source))
    asked = dataclasses.replace(asked, model=named)
    if isinstance(file, SavedSource):
        made, rows, asked = export_source(file, asked, Path(fetched) / "exported", allowance)
        request = request_of(made, asked, allowance, rows=rows)
        of_torch = made.parent / TORCH_FILE
        return dataclasses.replace(
            request,
            source_model_id=file.model_id,
            latency_time_s=SOURCE_LATENCY_S,
            torch_source=of_torch if of_torch.is_file() and torch_version() else None,
        )
    return request_of(file, asked, allowance)


@contextmanager
def open_session(
    entry: str,
    request: Request,
    params: Mapping[str, object],
    *,
    use_cache: bool = True,
    allowance: Allowance,
) -> Iterator[Session]:
    """Open the run of a command, and log its resolved parameters and its data.

    Args:
        entry: Name of the entry point.
        request: Its request.
        params: Its parameters.
        use_cache: Whether finished stages are reused.
        allowance: What each of its stages may use.
    """
    with command(
        entry,
        request.name,
        resolved(params, request),
        use_cache=use_cache,
        allow=lambda: allowance,
        threads=request.evaluate.threads,
    ) as session:
        # One process at a time measures on the GPU.
        if request.target.gpu is not None and request.is_measurable:
            session = dataclasses.replace(session, takes_turns=True)
        if request.source_model_id:
            link_source(session.client, session.run_id, request.source_model_id)
        if request.data is not None:
            log_dataset(session.client, session.run_id, request.data, request.data_digest, entry)
        yield session


def resolved(params: Mapping[str, object], request: Request) -> dict[str, object]:
    """Return the parameters of a command as the request resolved them, for its run."""
    found = {
        **params,
        "model": request.asked.model.model,
        "name": request.name,
        "target": request.target.device,
        "threads": request.evaluate.threads,
        "input_shapes": request.input_shapes,
        "data": str(request.data or ""),
    }
    return {name: value for name, value in found.items() if name not in ("no_cache", "dry_run")}


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
        "dtype": request.convert.computed_dtype,
        "skip_layers": str(request.convert.skip_layers),
        "keep_dtype": str(request.convert.keep_dtype),
        "build_run": built.run_id,
        "convert_run": converted.run_id,
        "model_sha256": request.model_digest,
        "input_shapes": request.convert.input_shapes,
    }
    if request.convert.dtype_map:
        tags["dtype_map"] = str(request.convert.dtype_map)
    if request.interface is not None and request.interface.source:
        tags["source"] = request.interface.source
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
