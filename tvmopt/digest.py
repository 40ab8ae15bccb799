"""Digests: a stage is identified by its configuration, its inputs and its code."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvmopt.errors import ArtifactError
from tvmopt.versions import installed

PYTHON_CACHE = "__pycache__"
"""Folder in which Python caches compiled sources."""
_COMPUTING_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "onnx", "onnxruntime", "numpy")


def canonical_json(data: Any) -> str:
    """JSON with one spelling for one value: sorted keys, no spaces, no NaN."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256_text(text: str) -> str:
    """sha256 of a text, hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: str | Path) -> str:
    """sha256 of a file, hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def code_digest() -> str:
    """sha256 over every source file of this package, in name order."""
    return _sha256_files(Path(__file__).parent, sorted(Path(__file__).parent.rglob("*.py")))


def sha256_tree(root: Path) -> str:
    """sha256 over the names and contents of all files below ``root``, a folder of code, hex.

    A file called ``__pycache__`` does not count: it only keeps Python from caching there.

    Raises:
        ArtifactError: When there is a link, a pipe or a device, whose content may be anywhere, or a
            folder ``__pycache__``: Python runs what it holds in place of the sources.
    """
    files = []
    for path in [root, *sorted(root.rglob("*"))]:
        mode = path.lstat().st_mode if os.path.lexists(path) else 0
        if stat.S_ISDIR(mode) and path.name != PYTHON_CACHE:
            continue
        if stat.S_ISDIR(mode):
            raise ArtifactError(
                f"a folder of code must hold no compiled code, but '{path}' is there; delete the "
                f"folders {PYTHON_CACHE} below '{root}', and set PYTHONDONTWRITEBYTECODE=1 where "
                "Python writes them again"
            )
        if not stat.S_ISREG(mode):
            raise ArtifactError(
                f"a folder of code must hold files and folders alone, but '{path}' is neither"
            )
        if path.name != PYTHON_CACHE:
            files.append(path)
    return _sha256_files(root, files)


def _sha256_files(root: Path, paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(bytes.fromhex(sha256_file(path)))
    return digest.hexdigest()


def stage_digest(stage: str, config: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """Identity of one stage, hex.

    Args:
        stage: Name of the stage.
        config: What it was asked, without paths: those say where, not what.
        inputs: Digests of what it works on, by role.
    """
    return sha256_text(
        canonical_json(
            {
                "stage": stage,
                "config": dict(config),
                "inputs": dict(inputs),
                "code": code_digest(),
                "versions": {name: installed(name) for name in _COMPUTING_PACKAGES},
            }
        )
    )
