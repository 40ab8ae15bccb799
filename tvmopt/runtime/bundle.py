"""Write the files that :func:`tvmopt.runtime.load` reads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tvmopt.runtime.metadata import GOLDEN_FILE, LIBRARY_FILE, METADATA_FILE


def copy_bundle(source: Path, target: Path) -> None:
    """Copy the files of a compiled model into the existing folder ``target``."""
    for name in (LIBRARY_FILE, METADATA_FILE, GOLDEN_FILE):
        shutil.copyfile(source / name, target / name)


def write_golden(
    folder: Path, inputs: Mapping[str, np.ndarray], outputs: Sequence[np.ndarray]
) -> Path:
    """Write inputs and golden outputs by position, because ONNX names may contain slashes."""
    path = folder / GOLDEN_FILE
    arrays = {f"input_{i}": a for i, a in enumerate(inputs.values())}
    arrays |= {f"output_{i}": np.asarray(a) for i, a in enumerate(outputs)}
    np.savez(path, allow_pickle=False, **arrays)
    return path
