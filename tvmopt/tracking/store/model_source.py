"""Resolve the parameter ``model``: a path, or the URI of a model in MLflow."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import yaml
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.store.artifact.utils.models import get_model_name_and_version
from mlflow.tracking.artifact_utils import _download_artifact_from_uri

from tvmopt.errors import ConfigError
from tvmopt.exporters.source import FLAVORS
from tvmopt.search.urls import without_known_secrets

_URI = re.compile(r"^(runs|models|mlflow-artifacts):/")


@dataclasses.dataclass(frozen=True)
class SavedSource:
    """A saved model that must be exported to ONNX first.

    Attributes:
        folder: The folder that MLflow saved.
        uri: Its URI, with a version where it has one.
        flavors: Its flavors.
        signature: Its signature in MLflow's JSON, or None.
        example: File of its input example, or None.
        run_id: Run that logged it; empty if unknown.
        model_id: Id of the logged model; empty if unknown.
    """

    folder: Path
    uri: str
    flavors: dict[str, Any]
    signature: dict[str, Any] | None
    example: Path | None
    run_id: str
    model_id: str


def local_model(model: str, download_to: Path) -> Path | SavedSource:
    """Return the path of the ONNX file, or a model to export; an MLflow model is downloaded.

    Args:
        model: A path, or ``runs:/<run>/<name>``, ``models:/<name>/<version>``,
            ``models:/<name>@<alias>`` of a model with the flavor ``onnx``, ``sklearn``,
            ``xgboost``, ``lightgbm`` or ``pytorch``; a ``.pt2`` file.
        download_to: Folder for a model that is not on this disk.

    Raises:
        ConfigError: When there is no such file or model, or it has none of these flavors.
    """
    if not _URI.match(model):
        return _local_file(model)
    model = _with_version(model)
    try:
        folder = Path(_download_artifact_from_uri(model, output_path=str(download_to)))
    except (MlflowException, OSError) as error:
        if "API request" in str(error):  # the server does not answer, so nothing is known of it
            raise
        reason = without_known_secrets(" ".join(str(error).split()))[:200]
        raise ConfigError(
            f"model must be an MLflow URI that exists, but {model!r} could not be fetched: {reason}"
            "; correct it, or MLFLOW_TRACKING_URI"
        ) from error
    if folder.is_file():
        return _file(folder)
    return _onnx_file(folder, model)


def _with_version(model: str) -> str:
    """Return the URI of a registered model with the number of its version: an alias may move."""
    if not model.startswith("models:/") or model.startswith("models:/m-"):
        return model
    try:
        name, version = get_model_name_and_version(MlflowClient(), model)
    except MlflowException:  # fetching it says what is wrong
        return model
    return f"models:/{name}/{version}"


def _file(path: Path) -> Path | SavedSource:
    """Return an ONNX file as it is, and what PyTorch exported as a model to export."""
    if path.suffix != ".pt2":
        return path
    flavors = {"pytorch": {"model_data": path.name, "serialization_format": "pt2"}}
    return SavedSource(path.parent, path.name, flavors, None, None, "", "")


def _local_file(model: str) -> Path | SavedSource:
    rule = "model must be an existing ONNX file or an MLflow URI (runs:/..., models:/...), but got"
    try:
        path = Path(model).expanduser()
        if not path.exists():
            raise ConfigError(f"{rule} {model!r} (there is no '{path.resolve()}')")
        if path.is_dir() and (path / "MLmodel").is_file():
            return _onnx_file(path, model)
        return _file(path.resolve())
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop, no such user, a NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{rule} {ascii(model)[:100]} ({reason})") from error


def _onnx_file(folder: Path, model: str) -> Path | SavedSource:
    if not (folder / "MLmodel").is_file():
        raise ConfigError(
            f"model must be an MLflow model, but {model!r} holds no MLmodel file"
            "; give the folder or the URI of a logged model"
        )
    flavors = Model.load(str(folder)).flavors
    if "onnx" not in flavors and set(FLAVORS) & set(flavors):
        return _saved_source(folder, model)
    if "onnx" not in flavors:
        raise ConfigError(
            f"model must have the flavor 'onnx', {', '.join(map(repr, FLAVORS))}, but {model!r} "
            f"has {', '.join(sorted(flavors))}"
        )
    path = (folder / flavors["onnx"]["data"]).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ConfigError(f"model data must lie inside the MLflow model, but got {path.name!r}")
    return path


def _saved_source(folder: Path, model: str) -> SavedSource:
    said: dict[str, Any] = yaml.safe_load((folder / "MLmodel").read_bytes())
    named = (said.get("saved_input_example_info") or {}).get("artifact_path", "")
    example = (folder / str(named)).resolve()
    is_inside = bool(named) and example.is_relative_to(folder.resolve())
    return SavedSource(
        folder,
        model,
        said["flavors"],
        said.get("signature"),
        example if is_inside and example.is_file() else None,
        str(said.get("run_id") or ""),
        str(said.get("model_id") or ""),
    )
