"""Private copies of a run's artifacts, verified against a manifest of hashes."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlparse

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run

from tvmopt.digest import sha256_file
from tvmopt.errors import EnvironmentSetupError

MANIFEST_FILE = "manifest.json"
#: Signature of the manifest, where a key is set; see :mod:`tvmopt.tracking.store.trust`.
SIGNATURE_FILE = "manifest.sig"
_NO_ARTIFACTS = (MANIFEST_FILE, SIGNATURE_FILE)
# Bytes that must stay free after a copy.
_LEAST_FREE = 100_000_000
_BLOCK = 1 << 20


def write_manifest(folder: Path) -> None:
    """Write the sha256 of every file below ``folder`` into its manifest."""
    hashes = {name: sha256_file(folder / name) for name in sorted(_files(folder))}
    (folder / MANIFEST_FILE).write_text(json.dumps(hashes, indent=2))


def is_intact(folder: Path) -> bool:
    """Return whether ``folder`` holds exactly the unchanged files of its manifest, and no links."""
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
    """Return the manifest: hashes by file name; None when it is missing or damaged."""
    try:
        hashes = json.loads((folder / MANIFEST_FILE).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(hashes, dict) or not all(isinstance(h, str) for h in hashes.values()):
        return None
    return hashes


def local_artifacts(client: MlflowClient, run_id: str, work_dir: Path) -> Path:
    """Copy the artifacts of a run into a new folder in ``work_dir``; returns the folder.

    It is a copy where the store is on this machine's disk, too: whoever can write to the store may
    exchange files there at any time. Nothing is checked; see
    :func:`tvmopt.tracking.store.trust.checked_artifacts`.

    Raises:
        EnvironmentSetupError: When there is not enough free space.
    """
    target = Path(tempfile.mkdtemp(prefix="artifacts-", dir=work_dir))
    stored = stored_folder(client.get_run(run_id))
    if stored is not None:
        _copy_files(stored, target)
        return target
    return Path(mlflow.artifacts.download_artifacts(run_id=run_id, dst_path=str(target)))


def stored_folder(run: Run) -> Path | None:
    """Return the local folder of a run's artifacts; None for a remote store."""
    parsed = urlparse(run.info.artifact_uri)
    return Path(unquote(parsed.path)) if parsed.scheme in ("", "file") else None


def _copy_files(source: Path, target: Path) -> None:
    """Copy the regular files below ``source``. Links, pipes and devices are left out."""
    found = [Path(at) / name for at, _, names in os.walk(source) for name in names]
    files = {path: size for path in found if (size := _regular_size(path)) is not None}
    needed, free = _LEAST_FREE + sum(files.values()), shutil.disk_usage(target).free
    if free < needed:
        raise EnvironmentSetupError(
            f"a private copy of '{source}' needs {needed / 1e6:.0f} MB of free space in "
            f"'{target.parent}', but there are {free / 1e6:.0f} MB; free space, or set TMPDIR to a "
            "folder with more"
        )
    for path, size in files.items():
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        _copy_file(path, copy, size)


def _regular_size(path: Path) -> int | None:
    try:
        found = path.lstat()
    except OSError:  # deleted meanwhile
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _copy_file(source: Path, target: Path, size: int) -> None:
    """Copy ``size`` bytes, by reference where the file system can (a hard link would be shared)."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        opened = os.open(source, flags)
    except OSError:  # deleted, exchanged for a link, not readable: it is missing in the copy
        return
    with os.fdopen(opened, "rb") as reader, target.open("xb") as writer:
        try:
            _copy_range(reader.fileno(), writer.fileno(), size)
        except OSError:  # across file systems, or none of the kinds that can
            writer.seek(reader.seek(0))
            writer.truncate()
            while size and (block := reader.read(min(size, _BLOCK))):
                size -= writer.write(block)


def _copy_range(source: int, target: int, size: int) -> None:
    while size and (copied := os.copy_file_range(source, target, size)):
        size -= copied


def _files(folder: Path) -> set[str]:
    found = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return {name for name in found if name not in _NO_ARTIFACTS}
