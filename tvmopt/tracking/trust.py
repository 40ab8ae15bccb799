"""Whose finished runs may be used again: what a run left is read, linked and executed here.

Without a key, runs of the own experiment that bear the own user's name. That keeps strangers apart
who do not mean harm: whoever can write to the tracking server can write that name, too. With a key
in ``TVMOPT_CACHE_KEY``, shared by a user's or a team's machines, every run is signed with it
(HMAC-SHA256 over stage, digest and the hashes of all files), and only runs that bear a valid
signature are used again, whoever made them and in whatever experiment.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from tvmopt.digest import canonical_json
from tvmopt.errors import ConfigError
from tvmopt.tracking.artifacts import SIGNATURE_FILE, is_intact, read_manifest
from tvmopt.tracking.runs import user
from tvmopt.tracking.store import all_experiment_ids

#: Environment variable with the key.
VARIABLE = "TVMOPT_CACHE_KEY"
_LEAST_CHARACTERS = 16


def cache_key() -> bytes | None:
    """The key that signs runs; None when there is none.

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
    """Ids of the experiments whose runs may be used: the own one, with a key all."""
    return [own] if cache_key() is None else all_experiment_ids(client)


def is_own(run: Run) -> bool:
    """Whether a run may be asked for its files: the own user's, with a key anybody's."""
    return cache_key() is not None or run.data.tags.get("mlflow.user") == user()


def may_use(folder: Path, run: Run) -> bool:
    """Whether the files of a run are whole and, where there is a key, signed with it."""
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
