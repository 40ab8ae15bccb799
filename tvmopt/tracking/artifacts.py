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


def write_manifest(folder: Path) -> None:
    """Write the sha256 of every file below ``folder`` into its manifest."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST_FILE)
    hashes = {p.relative_to(folder).as_posix(): sha256_file(p) for p in files}
    (folder / MANIFEST_FILE).write_text(json.dumps(hashes, indent=2))


def is_intact(folder: Path) -> bool:
    """Whether ``folder`` holds every file of its manifest, unchanged."""
    try:
        hashes = json.loads((folder / MANIFEST_FILE).read_text())
        return all(sha256_file(folder / name) == want for name, want in hashes.items())
    except (OSError, ValueError, AttributeError):
        return False


def local_artifacts(client: MlflowClient, run_id: str, download_to: Path) -> Path:
    """Folder with the artifacts of a run: in place when the store is on this machine's disk."""
    uri = client.get_run(run_id).info.artifact_uri
    parsed = urlparse(uri)
    if parsed.scheme in ("", "file"):
        return Path(unquote(parsed.path))
    target = Path(tempfile.mkdtemp(dir=download_to))
    return Path(mlflow.artifacts.download_artifacts(run_id=run_id, dst_path=str(target)))
