"""Decide which finished runs are trusted: their artifacts are read, linked and executed.

Without a key, runs of the own experiment that bear the own user's name. That keeps strangers apart
who do not mean harm: whoever can write to the tracking server can write that name, too. With a key
in ``TVMOPT_CACHE_KEY``, shared by a user's or a team's machines, every run is signed with it
(HMAC-SHA256 over stage, digest and the hashes of all files), and only runs that bear a valid
signature are used again, whoever made them and in whatever experiment.

What is checked is a private copy, and only the copy is used: the artifact store may change at any
time, also between check and use.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from tvmopt.digest import canonical_json
from tvmopt.errors import ArtifactError, ConfigError
from tvmopt.tracking.store.artifacts import (
    SIGNATURE_FILE,
    is_intact,
    local_artifacts,
    read_manifest,
    stored_folder,
)
from tvmopt.tracking.store.mlflow_store import all_experiment_ids
from tvmopt.tracking.store.runs import user

#: Environment variable with the key.
VARIABLE = "TVMOPT_CACHE_KEY"
_LEAST_CHARACTERS = 16


def cache_key() -> bytes | None:
    """Return the key that signs runs; None without one.

    Raises:
        ConfigError: When it is too short to be one.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    if len(text) < _LEAST_CHARACTERS:
        raise ConfigError(
            f"{VARIABLE} must have at least {_LEAST_CHARACTERS} characters, but got {len(text)}; "
            "make one with: python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    return text.encode()


def sign(folder: Path, stage: str, digest: str) -> None:
    """Write the signature of a folder that has a manifest; nothing without a key."""
    key = cache_key()
    if key is not None:
        (folder / SIGNATURE_FILE).write_text(_signature(key, folder, stage, digest))


def experiments_to_search(client: MlflowClient, own: str) -> list[str]:
    """Return ids of experiments with reusable runs: this one; all of them with a key."""
    return [own] if cache_key() is None else all_experiment_ids(client)


def is_own(run: Run) -> bool:
    """Return whether a run may be reused: the same user's; anybody's with a key."""
    return cache_key() is not None or run.data.tags.get("mlflow.user") == user()


def checked_artifacts(client: MlflowClient, run: Run, stage: str, work_dir: Path) -> Path:
    """Return a private copy of a run's artifacts, verified and, with a key, signed.

    A command copies and checks a run once.

    Args:
        client: Client of the tracking store.
        run: The run.
        stage: Its stage.
        work_dir: Private folder of the command.

    Raises:
        ArtifactError: When files are missing or changed, or the signature is not valid.
        EnvironmentSetupError: When there is not enough free space.
    """
    kept = private_folder(work_dir, stage, run.info.run_id)
    if kept.is_dir():
        return kept
    copy = local_artifacts(client, run.info.run_id, work_dir)
    if not may_use(copy, run):
        what = "is not signed with our key" if is_intact(copy) else "has damaged artifacts"
        shutil.rmtree(copy)
        raise ArtifactError(f"run {run.info.run_id[:8]} {what}")
    return keep_private(copy, work_dir, stage, run.info.run_id)


def are_usable(client: MlflowClient, run: Run, stage: str, work_dir: Path) -> bool:
    """Return whether :func:`checked_artifacts` would succeed; keeps no copy."""
    if private_folder(work_dir, stage, run.info.run_id).is_dir():
        return True
    stored = stored_folder(run)
    if stored is not None:
        return may_use(stored, run)
    copy = local_artifacts(client, run.info.run_id, work_dir)
    try:
        return may_use(copy, run)
    finally:
        shutil.rmtree(copy)


def private_folder(work_dir: Path, stage: str, run_id: str) -> Path:
    """Return the folder for a command's private copy of a run's artifacts."""
    return work_dir / "artifacts" / stage / run_id


def keep_private(folder: Path, work_dir: Path, stage: str, run_id: str) -> Path:
    """Move ``folder``, which holds checked or own artifacts of a run, to where they are kept."""
    kept = private_folder(work_dir, stage, run_id)
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(kept, ignore_errors=True)
    return folder.rename(kept)


def drop_private(work_dir: Path, *stages: str) -> None:
    """Remove the private copies of all runs of some stages."""
    for stage in stages:
        shutil.rmtree(private_folder(work_dir, stage, ""), ignore_errors=True)


def may_use(folder: Path, run: Run) -> bool:
    """Return whether a run's files are intact and, with a key, signed."""
    if not is_intact(folder):
        return False
    key = cache_key()
    if key is None:
        return True
    tags = run.data.tags
    try:
        signature = (folder / SIGNATURE_FILE).read_text()
        wanted = _signature(
            key, folder, tags.get("tvmopt.stage", ""), tags.get("tvmopt.digest", "")
        )
        return hmac.compare_digest(signature.encode(), wanted.encode())
    except (OSError, ValueError):
        return False


def _signature(key: bytes, folder: Path, stage: str, digest: str) -> str:
    signed = canonical_json({"stage": stage, "digest": digest, "files": read_manifest(folder)})
    return hmac.new(key, signed.encode(), hashlib.sha256).hexdigest()
