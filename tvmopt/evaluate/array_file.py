"""Read arrays from ``.npz`` and ``.npy`` files that may be damaged or hostile.

NumPy's own reader allocates what a header says, and unpickles objects. Here a header is checked
against the size of the file, and objects are refused.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Set
from pathlib import Path
from typing import IO

import numpy as np

from tvmopt import host
from tvmopt.errors import ConfigError


def read_array_file(path: Path, only: Set[str] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of a ``.npz`` or ``.npy`` file by name; a ``.npy`` file's is ``data``.

    Args:
        path: The file.
        only: Names of the arrays to read, where the file names its arrays; None for all.

    Raises:
        ConfigError: When there is no such file, or it is no file of plain arrays.
    """
    if not path.is_file():
        raise ConfigError(
            f"data must be an existing .npz or .npy file, but there is none at '{path}'"
        )
    try:
        if not zipfile.is_zipfile(path):
            if only is not None:
                return {}
            with path.open("rb") as file:
                return {"data": _array(file, path.stat().st_size)}
        return _arrays(path, only)
    except Exception as error:  # a damaged file makes the zip and deflate readers raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigError(
            f"data must be a .npz or .npy file of plain arrays, but '{path}' is not: {reason}"
        ) from error


def _arrays(path: Path, only: Set[str] | None) -> dict[str, np.ndarray]:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        members = [m for m in archive.infolist() if m.filename.endswith(".npy")]
        if not members:
            raise ValueError("it is an archive without arrays")
        if only is not None:
            members = [m for m in members if m.filename.removesuffix(".npy") in only]
        size = sum(member.file_size for member in members)
        if size > host.memory_bytes():
            raise ValueError(f"its arrays have {size / 1e9:.0f} GB, more than there is memory")
        for member in members:
            with archive.open(member) as file:
                arrays[member.filename.removesuffix(".npy")] = _array(file, member.file_size)
    return arrays


def _array(file: IO[bytes], size: int) -> np.ndarray:
    """Return the array of a ``.npy`` file of ``size`` bytes; validate its header first."""
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in read:
        raise ValueError(f"version {version} of the format is not known")
    shape, in_fortran_order, dtype = read[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    count = math.prod(shape)
    if count * dtype.itemsize > size:
        raise ValueError(f"it is cut short: its header says {shape} {dtype}, it has {size} bytes")
    array = np.frombuffer(file.read(count * dtype.itemsize), dtype, count)
    return array.reshape(shape, order="F" if in_fortran_order else "C").copy()
