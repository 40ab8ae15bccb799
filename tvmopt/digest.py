"""Digests: the identity of a stage is what it was asked, of what inputs, by which code."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvmopt.versions import installed

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
    """sha256 over the names and contents of all files below ``root``, hex.

    What Python caches of its sources (``__pycache__``) is left out.
    """
    files = (p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return _sha256_files(root, sorted(files))


def _sha256_files(root: Path, paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
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
