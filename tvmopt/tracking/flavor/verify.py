"""Verify a saved model: a chain of hashes from registry tags to file contents.

Each link names the hash of the next one::

    registered version (tags)  ->  MLmodel  ->  model.json  ->  model.so, golden.npz
                               ->  code/
                               ->  what MLflow's generic tools read: the flavor python_function,
                                   signature, input example, requirements

Who can write the artifacts, but not the registry's database, cannot exchange any of them unseen.
``pull``, ``load_model``, ``serve``, promotion and the last round of a search all ask here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from mlflow.models.model import MLMODEL_FILE_NAME

from tvmopt.digest import canonical_json, sha256_file, sha256_text, sha256_tree
from tvmopt.errors import ArtifactError, in_one_line
from tvmopt.runtime.checks import check_files
from tvmopt.runtime.metadata import ModelMetadata

FLAVOR_NAME = "tvmopt"
#: Tags of a registered version that hold hashes, and what the same hash is called in MLmodel.
REGISTERED = {
    "sha256": "library_sha256",
    "metadata_sha256": "metadata_sha256",
    "code_sha256": "code_sha256",
    "generic_sha256": "generic_sha256",
}
# Files that MLflow writes next to MLmodel for its generic tools.
_GENERIC_FILES = (
    "conda.yaml", "python_env.yaml", "requirements.txt", "constraints.txt", "input_example.json",
    "serving_input_example.json",
)  # fmt: skip
_GENERIC_KEYS = ("signature", "saved_input_example_info")
_GENERIC_FLAVOR = "python_function"
_MOST_MLMODEL_BYTES = 1 << 20
_CURE = "fetch it again, or build and register it again"


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """A saved model with verified files.

    Attributes:
        bundle: Folder with library, metadata and golden file.
        metadata: What ``model.json`` says.
        metadata_sha256: Hash of ``model.json``, hex.
    """

    bundle: Path
    metadata: ModelMetadata
    metadata_sha256: str


def verify_model(saved: Path, tags: Mapping[str, str] | None = None) -> SavedModel:
    """Check every file of a saved model; no library is opened.

    Args:
        saved: Folder with ``MLmodel``. It should be a private copy: what is exchanged later is
            noticed only where it is hashed again (see :func:`tvmopt.runtime.load`).
        tags: Tags of the registered version; None when the model comes from elsewhere.

    Raises:
        ArtifactError: Names the file, the hash that it must have, and the one it has.
    """
    mlmodel = read_mlmodel(saved)
    flavor: dict[str, Any] = mlmodel["flavors"][FLAVOR_NAME]
    for tag, key in REGISTERED.items():
        wanted = (tags or {}).get(tag)
        if wanted is not None and flavor.get(key) != wanted:
            raise ArtifactError(
                f"the version is registered with {key} {wanted[:16]}..., but {MLMODEL_FILE_NAME} "
                f"says {str(flavor.get(key))[:16]}...: its files were changed after it was "
                f"registered; do not run them; {_CURE}"
            )
    if "code_sha256" in flavor:
        found = sha256_tree(_inside(saved, flavor, "code"))
        if found != flavor["code_sha256"]:
            raise ArtifactError(
                f"the folder of code must have sha256 {str(flavor['code_sha256'])[:16]}..., but "
                f"got {found[:16]}...: it was changed after the model was saved; {_CURE}"
            )
    if "generic_sha256" in flavor:
        found = generic_sha256(saved, mlmodel)
        if found != flavor["generic_sha256"]:
            raise ArtifactError(
                f"what MLflow's generic tools read ({_GENERIC_FLAVOR}, {', '.join(_GENERIC_KEYS)} "
                f"in {MLMODEL_FILE_NAME}; {', '.join(_GENERIC_FILES)}) must have sha256 "
                f"{str(flavor['generic_sha256'])[:16]}..., but got {found[:16]}...: it was changed "
                f"after the model was saved; {_CURE}"
            )
    bundle = _inside(saved, flavor, "data")
    expected = _text(flavor, "metadata_sha256")
    metadata = ModelMetadata.read(bundle, expected)
    for key in ("library_sha256", "golden_sha256"):
        if getattr(metadata, key) != flavor.get(key):
            raise ArtifactError(
                f"{MLMODEL_FILE_NAME} and model.json must name the same {key}, but they name "
                f"{str(flavor.get(key))[:16]}... and {getattr(metadata, key)[:16]}...; {_CURE}"
            )
    check_files(bundle, metadata)
    return SavedModel(bundle, metadata, expected)


def generic_sha256(saved: Path, mlmodel: Mapping[str, Any]) -> str:
    """Return the sha256 of the parts of a saved model that MLflow's generic tools read, in hex.

    MLflow imports and installs what it says there. The rest of ``MLmodel`` (ids, times, sizes) is
    left out: MLflow writes it again when it logs or registers a model.

    Raises:
        ArtifactError: When one of the files is no regular file, or ``MLmodel`` holds what is no
            JSON.
    """
    hashes: dict[str, str] = {}
    for name in _GENERIC_FILES:
        path = saved / name
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise ArtifactError(f"{name} must be a regular file, but '{path}' is none; {_CURE}")
        if path.exists():
            hashes[name] = sha256_file(path)
    said = {key: mlmodel.get(key) for key in _GENERIC_KEYS}
    said[_GENERIC_FLAVOR] = mlmodel["flavors"].get(_GENERIC_FLAVOR)
    try:
        return sha256_text(canonical_json({"files": hashes, "mlmodel": said}))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{MLMODEL_FILE_NAME} must hold plain values, but got {in_one_line(error)}; {_CURE}"
        ) from error


def read_mlmodel(saved: Path) -> dict[str, Any]:
    """Read ``MLmodel`` in the folder ``saved``; it must have our flavor.

    Raises:
        ArtifactError: When the file is missing, damaged, or of another flavor.
    """
    path = saved / MLMODEL_FILE_NAME
    try:
        if path.stat().st_size > _MOST_MLMODEL_BYTES:
            raise ValueError(f"it is larger than {_MOST_MLMODEL_BYTES} bytes")
        mlmodel: dict[str, Any] = yaml.safe_load(path.read_bytes())
        if not isinstance(mlmodel["flavors"][FLAVOR_NAME], dict):
            raise TypeError(f"flavor {FLAVOR_NAME} is no mapping")
    except (OSError, ValueError, TypeError, KeyError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ArtifactError(
            f"'{saved}' must be a saved model with the flavor {FLAVOR_NAME}, but its "
            f"{MLMODEL_FILE_NAME} is missing or damaged ({reason}); {_CURE}"
        ) from error
    return mlmodel


def _inside(saved: Path, flavor: Mapping[str, Any], key: str) -> Path:
    name = PurePosixPath(_text(flavor, key))
    if name.is_absolute() or ".." in name.parts:
        raise ArtifactError(
            f"{key} in {MLMODEL_FILE_NAME} must be a folder of the saved model, but got "
            f"'{name}'; {_CURE}"
        )
    return saved / name


def _text(flavor: Mapping[str, Any], key: str) -> str:
    value = flavor.get(key)
    if not isinstance(value, str):
        raise ArtifactError(
            f"{MLMODEL_FILE_NAME} must hold {key} as text, but got {str(value)[:50]!r}; {_CURE}"
        )
    return value
