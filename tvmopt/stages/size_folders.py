"""Folders of the sizes of a model, in the output of a stage, and ``sizes.json``.

::

    convert/            the largest size
      sizes.json        dimensions that differ
      sizes/1/          the next size: no weights that equal the largest's
      sizes/2/
"""

from __future__ import annotations

import dataclasses
import filecmp
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import tvm

from tvmopt.runtime.metadata import size_dimension
from tvmopt.runtime.sizes import SizeDimension
from tvmopt.stages.module_files import PARAMS_FILE, QUANTIZED_FILE, read_module

SIZES_DIR = "sizes"
SIZES_FILE = "sizes.json"


def size_folder(folder: Path, size: int) -> Path:
    """Return the folder of a size; 0 is the largest."""
    return folder / SIZES_DIR / str(size) if size else folder


def size_folders(folder: Path) -> list[Path]:
    """Return the folders of all sizes in the output of a stage."""
    found = itertools.takewhile(Path.is_dir, (size_folder(folder, n) for n in itertools.count(1)))
    return [folder, *found]


def keep_what_differs(folder: Path, largest: Path) -> None:
    """Remove large files of a further size that the later stages do not need.

    Args:
        folder: Folder of the size in the output of the convert stage.
        largest: Folder of the largest size.
    """
    (folder / QUANTIZED_FILE).unlink(missing_ok=True)
    if filecmp.cmp(folder / PARAMS_FILE, largest / PARAMS_FILE, shallow=False):
        (folder / PARAMS_FILE).unlink()


def read_size(convert_dir: Path, size: int) -> tvm.IRModule:
    """Return the converted module of a size, weights bound."""
    folder = size_folder(convert_dir, size)
    has_own = (folder / PARAMS_FILE).is_file()
    return read_module(folder, folder if has_own else convert_dir)


def write_dimensions(folder: Path, dimensions: Sequence[SizeDimension]) -> None:
    """Write ``sizes.json``."""
    rows = [dataclasses.asdict(dimension) for dimension in dimensions]
    (folder / SIZES_FILE).write_text(json.dumps(rows, indent=2))


def read_dimensions(folder: Path) -> tuple[SizeDimension, ...]:
    """Read what :func:`write_dimensions` wrote; empty where there is one size."""
    path = folder / SIZES_FILE
    if not path.is_file():
        return ()
    return tuple(map(size_dimension, json.loads(path.read_text())))
