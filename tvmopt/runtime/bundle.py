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
    arrays = {golden_name("input", i, 0): a for i, a in enumerate(inputs.values())}
    arrays |= {golden_name("output", i, 0): np.asarray(a) for i, a in enumerate(outputs)}
    np.savez(path, allow_pickle=False, **arrays)
    return path


def join_golden(folders: Sequence[Path], target: Path) -> None:
    """Write the golden files of ``folders``, one of each size, into a file of ``target``."""
    arrays: dict[str, np.ndarray] = {}
    for size, folder in enumerate(folders):
        with np.load(folder / GOLDEN_FILE, allow_pickle=False) as data:
            arrays |= {_at(size, name): data[name] for name in data.files}
    np.savez(target / GOLDEN_FILE, allow_pickle=False, **arrays)


def golden_name(side: str, number: int, size: int) -> str:
    """Return the name of a golden tensor: input or output ``number`` of a size."""
    return _at(size, f"{side}_{number}")


def _at(size: int, name: str) -> str:
    return f"size_{size}_{name}" if size else name
