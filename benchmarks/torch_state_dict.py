"""Read a state dict in PyTorch's legacy format without PyTorch, from an untrusted file.

The format (before PyTorch 1.6, not a zip) is five pickles: magic number, protocol version, system
info, state dict, list of storage keys. The raw storages follow. An ordinary unpickler imports and
calls any global that a file names, so a weights file could run any program. The restricted
unpickler admits four globals: `OrderedDict`, `_rebuild_tensor_v2` (replaced by a function here),
`FloatStorage` and `LongStorage` (replaced by NumPy dtypes). Every view must lie inside its storage,
so a forged size or stride cannot read out of bounds.

Source of the format: `torch/serialization.py`, `_legacy_save` and `_legacy_load`.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
PROTOCOL_VERSION = 1001


@dataclass(frozen=True)
class _Storage:
    """A storage by its key in the file; the bytes follow after the pickles."""

    key: str
    dtype: np.dtype


@dataclass(frozen=True)
class _Tensor:
    """A strided view of a storage; `offset` and `strides` count elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def end(self) -> int:
        """Return the storage index one past the last element of the view."""
        if 0 in self.shape:
            return self.offset
        last = sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        return self.offset + last + 1


def _rebuild_tensor(
    storage: _Storage,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    *_autograd: object,
) -> _Tensor:
    return _Tensor(storage, offset, size, stride)


_ADMITTED = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch", "FloatStorage"): "<f4",
    ("torch", "LongStorage"): "<i8",
}


class RestrictedUnpickler(pickle.Unpickler):
    """Unpickler that admits the globals of a state dict and refuses all others."""

    def find_class(self, module: str, name: str) -> object:
        """Return the replacement of an admitted global.

        Raises:
            pickle.UnpicklingError: The pickle names another global.
        """
        if (module, name) not in _ADMITTED:
            admitted = ", ".join(".".join(pair) for pair in sorted(_ADMITTED))
            raise pickle.UnpicklingError(
                f"A state dict may only name {admitted}, but this file names {module}.{name}; "
                "do not load it: it may run code of its author's choice."
            )
        return _ADMITTED[module, name]

    def persistent_load(self, pid: object) -> _Storage:
        """Return the storage of ('storage', dtype, key, device, element count, view)."""
        match pid:
            case ("storage", "<f4" | "<i8" as dtype, str(key), _, int(), None):
                return _Storage(key, np.dtype(dtype))
        raise pickle.UnpicklingError(
            "A persistent id must be ('storage', type, key, device, count, None), "
            f"but got {pid!r}; only plain state dicts of dense tensors can be read."
        )


def _expect(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise ValueError(
            f"The {what} of a legacy PyTorch file must be {wanted!r}, but got {got!r}; "
            "pass a .pth file written with _use_new_zipfile_serialization=False."
        )


def _read_storage(file: io.BytesIO, dtype: np.dtype) -> np.ndarray:
    header = file.read(8)
    count = struct.unpack("<q", header)[0] if len(header) == 8 else -1
    data = file.read(max(count, 0) * dtype.itemsize)
    if count < 0 or len(data) != count * dtype.itemsize:
        raise ValueError(
            f"A storage must hold the {count} elements of {dtype} that its header announces, "
            f"but got {len(data)} bytes; the file is truncated: fetch it again."
        )
    return np.frombuffer(data, dtype)


def _view(name: str, tensor: _Tensor, data: np.ndarray) -> np.ndarray:
    lowest = min((tensor.offset, *tensor.shape, *tensor.strides))
    if lowest < 0 or tensor.end() > len(data):
        raise ValueError(
            f"Tensor {name!r} must lie inside its storage of {len(data)} elements, but it has "
            f"shape {tensor.shape}, strides {tensor.strides} and offset {tensor.offset}; "
            "the file is damaged or forged: do not use it."
        )
    strides = [step * data.itemsize for step in tensor.strides]
    return np.lib.stride_tricks.as_strided(data[tensor.offset :], tensor.shape, strides).copy()


def read_state_dict(content: bytes) -> dict[str, np.ndarray]:
    """Return the tensors of a legacy .pth file by name.

    Raises:
        pickle.UnpicklingError: The file names a global that is not admitted.
        ValueError: The file is not in the legacy format, is truncated, or a tensor does not fit
            its storage.
    """
    file = io.BytesIO(content)
    _expect("magic number", RestrictedUnpickler(file).load(), MAGIC_NUMBER)
    _expect("protocol version", RestrictedUnpickler(file).load(), PROTOCOL_VERSION)
    system_info = RestrictedUnpickler(file).load()
    _expect("byte order", system_info.get("little_endian"), True)
    tensors: OrderedDict[str, _Tensor] = RestrictedUnpickler(file).load()
    keys: list[str] = RestrictedUnpickler(file).load()
    dtypes = {tensor.storage.key: tensor.storage.dtype for tensor in tensors.values()}
    _expect("storage key list", sorted(keys), sorted(dtypes))
    storages = {key: _read_storage(file, dtypes[key]) for key in keys}
    return {
        name: _view(name, tensor, storages[tensor.storage.key]) for name, tensor in tensors.items()
    }
