"""Artifacts of a run on local disk, with a manifest of hashes that says whether they are intact."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlparse

import mlflow
from mlflow import MlflowClient

from tvmopt.digest import sha256_file

MANIFEST_FILE = "manifest.json"
#: Signature of the manifest, where a key is set; see :mod:`tvmopt.tracking.trust`.
SIGNATURE_FILE = "manifest.sig"
_NO_ARTIFACTS = (MANIFEST_FILE, SIGNATURE_FILE)


def write_manifest(folder: Path) -> None:
    """Write the sha256 of every file below ``folder`` into its manifest."""
    hashes = {name: sha256_file(folder / name) for name in sorted(_files(folder))}
    (folder / MANIFEST_FILE).write_text(json.dumps(hashes, indent=2))


def is_intact(folder: Path) -> bool:
    """Whether ``folder`` holds exactly the files of its manifest, unchanged, and no links."""
    hashes = read_manifest(folder)
    if hashes is None:
        return False
    try:
        if any(path.is_symlink() for path in folder.rglob("*")) or _files(folder) != set(hashes):
            return False
        return all(sha256_file(folder / name) == want for name, want in hashes.items())
    except OSError:
        return False


def read_manifest(folder: Path) -> dict[str, str] | None:
    """Hash of each file by name, as the manifest has it; None when it is missing or damaged."""
    try:
        hashes = json.loads((folder / MANIFEST_FILE).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(hashes, dict) or not all(isinstance(h, str) for h in hashes.values()):
        return None
    return hashes


def local_artifacts(client: MlflowClient, run_id: str, download_to: Path) -> Path:
    """Folder with the artifacts of a run: in place when the store is on this machine's disk."""
    uri = client.get_run(run_id).info.artifact_uri
    parsed = urlparse(uri)
    if parsed.scheme in ("", "file"):
        return Path(unquote(parsed.path))
    target = Path(tempfile.mkdtemp(dir=download_to))
    return Path(mlflow.artifacts.download_artifacts(run_id=run_id, dst_path=str(target)))


def _files(folder: Path) -> set[str]:
    found = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return {name for name in found if name not in _NO_ARTIFACTS}
