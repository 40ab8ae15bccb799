"""Read arrays from ``.npz`` and ``.npy`` files that may be damaged or hostile.

NumPy's own reader allocates what a header says, and unpickles objects. Here a header is checked
against the size of the file, and objects are refused. What the file holds without compression is
mapped into memory, not copied: every stage reads the same file, and few of its samples.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Set
from pathlib import Path

import numpy as np

from tvmopt import host
from tvmopt.errors import ConfigError

# Of a zip file: the size of a local header, and where the lengths are of the two fields behind it.
_LOCAL_HEADER, _LENGTHS_AT = 30, 26
# NumPy refuses longer headers of a .npy file: 10,000 bytes behind 12.
_LONGEST_HEADER = 16_384


def read_array_file(path: Path, only: Set[str] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of a ``.npz`` or ``.npy`` file by name; a ``.npy`` file's is ``data``.

    They are read-only.

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
            return {"data": _array(np.memmap(path, np.uint8, mode="r"))}
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
            if member.compress_type == zipfile.ZIP_STORED:
                held = _stored(path, archive, member)
            else:
                held = np.frombuffer(archive.read(member), np.uint8)
            arrays[member.filename.removesuffix(".npy")] = _array(held)
    return arrays


def _stored(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Return the bytes of a member that is not compressed, mapped into memory."""
    with archive.open(member), path.open("rb") as file:  # opening checks its header
        file.seek(member.header_offset)
        header = file.read(_LOCAL_HEADER)
    name, extra = struct.unpack_from("<HH", header, _LENGTHS_AT)
    start = member.header_offset + _LOCAL_HEADER + name + extra
    if not member.file_size:
        raise ValueError(f"its array {member.filename!r} is empty")
    held = np.memmap(path, np.uint8, mode="r", offset=start, shape=(member.file_size,))
    if zlib.crc32(held.data) != member.CRC:
        raise ValueError(f"the checksum of its array {member.filename!r} is wrong")
    return held


def _array(held: np.ndarray) -> np.ndarray:
    """Return the array of the bytes of a ``.npy`` file; validate its header first."""
    file = io.BytesIO(held[:_LONGEST_HEADER].tobytes())
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
    count, start = math.prod(shape), file.tell()
    if count * dtype.itemsize > len(held) - start:
        raise ValueError(
            f"it is cut short: its header says {shape} {dtype}, it has {len(held)} bytes"
        )
    array = np.frombuffer(held, dtype, count, start)
    return array.reshape(shape, order="F" if in_fortran_order else "C")
