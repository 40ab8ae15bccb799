"""Resolve the parameter ``model``: a path, or the URI of an ONNX model in MLflow."""

from __future__ import annotations

import re
from pathlib import Path

from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.tracking.artifact_utils import _download_artifact_from_uri

from tvmopt.errors import ConfigError
from tvmopt.search.urls import without_known_secrets

_URI = re.compile(r"^(runs|models|mlflow-artifacts):/")


def local_model(model: str, download_to: Path) -> Path:
    """Return the path of the ONNX file; an MLflow model is downloaded.

    Args:
        model: A path, or ``runs:/<run>/<name>``, ``models:/<name>/<version>``,
            ``models:/<name>@<alias>`` of a model with the flavor ``onnx``.
        download_to: Folder for a model that is not on this disk.

    Raises:
        ConfigError: When there is no such file or model, or it has no ONNX flavor.
    """
    if not _URI.match(model):
        return _local_file(model)
    try:
        folder = Path(_download_artifact_from_uri(model, output_path=str(download_to)))
    except (MlflowException, OSError) as error:
        if "API request" in str(error):  # the server does not answer, so nothing is known of it
            raise
        reason = without_known_secrets(" ".join(str(error).split()))[:200]
        raise ConfigError(
            f"model must be an MLflow URI that exists, but {model!r} could not be fetched: {reason}"
        ) from error
    if folder.is_file():
        return folder
    return _onnx_file(folder, model)


def _local_file(model: str) -> Path:
    rule = "model must be an existing ONNX file or an MLflow URI (runs:/..., models:/...), but got"
    try:
        path = Path(model).expanduser()
        if not path.exists():
            raise ConfigError(f"{rule} {model!r} (there is no '{path.resolve()}')")
        if path.is_dir() and (path / "MLmodel").is_file():
            return _onnx_file(path, model)
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop, no such user, a NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{rule} {ascii(model)[:100]} ({reason})") from error


def _onnx_file(folder: Path, model: str) -> Path:
    if not (folder / "MLmodel").is_file():
        raise ConfigError(f"model must be an MLflow model, but {model!r} holds no MLmodel file")
    flavors = Model.load(str(folder)).flavors
    if "onnx" not in flavors:
        raise ConfigError(
            f"model must have the flavor 'onnx', but {model!r} has {', '.join(sorted(flavors))}"
        )
    path = (folder / flavors["onnx"]["data"]).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ConfigError(f"model data must lie inside the MLflow model, but got {path.name!r}")
    return path
