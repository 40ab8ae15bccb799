"""Tests of the state-dict reader on files written byte by byte, without PyTorch."""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.torch_state_dict import (
    MAGIC_NUMBER,
    PROTOCOL_VERSION,
    RestrictedUnpickler,
    read_state_dict,
)


class Global:
    """Pickle as the global `module.name`, whether or not that module can be imported."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class StoredTensor:
    """Pickle a tensor in PyTorch's legacy format."""

    def __init__(self, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> None:
        self.size, self.stride, self.offset = size, stride, offset


class LegacyPickler(
    pickle._Pickler
):  # the pure Python pickler, because its opcode methods can be overridden
    """Write globals by name and storages as persistent ids."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_named_global(self, value: Global) -> None:
        self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())

    def save_tensor(self, value: StoredTensor) -> None:
        self.save(Global("torch._utils", "_rebuild_tensor_v2"))
        self.write(pickle.MARK)
        self.write(pickle.MARK)
        for part in ("storage", Global("torch", "FloatStorage"), "0", "cpu", 6, None):
            self.save(part)
        self.write(pickle.TUPLE + pickle.BINPERSID)
        for part in (value.offset, value.size, value.stride, False, OrderedDict()):
            self.save(part)
        self.write(pickle.TUPLE + pickle.REDUCE)

    dispatch[Global] = save_named_global
    dispatch[StoredTensor] = save_tensor


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    LegacyPickler(buffer, protocol=2).dump(value)
    return buffer.getvalue()


def legacy_file(tensors: object, magic: int = MAGIC_NUMBER, numbers: int = 6) -> bytes:
    """Return a file with one float storage "0" that declares six elements and holds `numbers`."""
    header = [magic, PROTOCOL_VERSION, {"little_endian": True}, tensors, ["0"]]
    data = np.arange(numbers, dtype="<f4").tobytes()
    return b"".join(map(pickled, header)) + struct.pack("<q", 6) + data


class RunsCommand:
    """An object that runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


def test_reads_contiguous_and_permuted_tensors() -> None:
    tensors = OrderedDict(
        rows=StoredTensor((2, 3), (3, 1)),
        columns=StoredTensor((3, 2), (1, 3)),
        tail=StoredTensor((2,), (1,), offset=4),
        scalar=StoredTensor((), (), offset=5),
        empty=StoredTensor((0, 3), (3, 1)),
    )
    read = read_state_dict(legacy_file(tensors))
    np.testing.assert_array_equal(read["rows"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(read["columns"], [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(read["tail"], [4, 5])
    assert read["scalar"] == np.float32(5)
    assert read["empty"].shape == (0, 3)
    assert {array.dtype for array in read.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("position", range(5))
def test_malicious_pickle_is_refused_and_not_run(tmp_path: Path, position: int) -> None:
    trace = tmp_path / "was_run"
    parts = [
        MAGIC_NUMBER,
        PROTOCOL_VERSION,
        {"little_endian": True},
        OrderedDict(weight=StoredTensor((6,), (1,))),
        ["0"],
    ]
    parts[position] = RunsCommand(f"touch '{trace}'")
    with pytest.raises(pickle.UnpicklingError, match=r"this file names (posix|nt)\.system"):
        read_state_dict(b"".join(map(pickled, parts)))
    assert not trace.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("collections", "OrderedDict.__init__"),
        ("collections", "namedtuple"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("evil", "OrderedDict"),
        ("evil", "FloatStorage"),
    ],
)
def test_only_exact_names_are_admitted(module: str, name: str) -> None:
    unpickler = RestrictedUnpickler(io.BytesIO(pickled(Global(module, name))))
    with pytest.raises(pickle.UnpicklingError, match="do not load it"):
        unpickler.load()


@pytest.mark.parametrize(
    "tensor",
    [
        StoredTensor((7,), (1,)),
        StoredTensor((6,), (1,), offset=1),
        StoredTensor((2, 3), (4, 1)),
        StoredTensor((2,), (-1,), offset=3),
        StoredTensor((2,), (1,), offset=-1),
        StoredTensor((2,), (2**40,)),
    ],
    ids=["too long", "shifted", "wide stride", "negative stride", "negative offset", "far"],
)
def test_views_outside_their_storage_are_refused(tensor: StoredTensor) -> None:
    with pytest.raises(ValueError, match="'weight' must lie inside its storage of 6 elements"):
        read_state_dict(legacy_file(OrderedDict(weight=tensor)))


def test_other_formats_are_refused() -> None:
    tensors = OrderedDict(weight=StoredTensor((6,), (1,)))
    with pytest.raises(ValueError, match="magic number of a legacy PyTorch file must be"):
        read_state_dict(legacy_file(tensors, magic=7))


def test_truncated_storage_is_refused() -> None:
    tensors = OrderedDict(weight=StoredTensor((6,), (1,)))
    with pytest.raises(ValueError, match="but got 20 bytes; the file is truncated"):
        read_state_dict(legacy_file(tensors, numbers=5))


def test_storage_types_are_restricted_too() -> None:
    parts = ("storage", "<f8", "0", "cpu", 6, None)
    forged = pickled(parts).removesuffix(pickle.STOP) + pickle.BINPERSID + pickle.STOP
    with pytest.raises(pickle.UnpicklingError, match="only plain state dicts of dense tensors"):
        RestrictedUnpickler(io.BytesIO(forged)).load()
