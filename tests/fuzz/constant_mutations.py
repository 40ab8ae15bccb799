"""Mutations of the constants of an ONNX model, see :mod:`tests.fuzz.graph_mutations`."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.fuzz.pick import some_graph, some_tensor
from tests.fuzz.vocabulary import DIMS, FLOATS, INTS, NAMES

# Constants


def spoil(tensor, chance):
    """Make bytes, dimensions or dtype of ``tensor`` inconsistent."""
    kind = chance.randrange(10)
    raw = tensor.raw_data
    if kind == 0:
        tensor.raw_data = raw[: chance.randrange(len(raw) + 1)]
    elif kind == 1:
        tensor.raw_data = raw + b"\x00" * chance.choice([1, 4, 8, 1000])
    elif kind == 2:
        if tensor.dims:
            tensor.dims[chance.randrange(len(tensor.dims))] = chance.choice(DIMS)
        else:
            tensor.dims.append(chance.choice(DIMS))
    elif kind == 3:
        tensor.data_type = chance.choice([*range(28), 100, -1])
    elif kind == 4:
        tensor.ClearField("raw_data")
    elif kind == 5:
        tensor.float_data.extend([1.0, 2.0])
    elif kind == 6:
        tensor.string_data.extend([b"a", b"\xff"])
    elif kind == 7:
        del tensor.dims[:]
    elif kind == 8:
        tensor.segment.begin, tensor.segment.end = chance.choice(INTS), chance.choice(INTS)
    else:
        tensor.dims.append(1)


def spoil_tensor(model, chance, files):
    """Make bytes, dimensions or dtype of a constant inconsistent."""
    spoil(some_tensor(model, chance), chance)


def _decoded(tensor):
    """Return the array of a tensor; None when an earlier mutation has damaged it."""
    try:
        return numpy_helper.to_array(tensor).copy()
    except Exception:  # onnx and NumPy raise exceptions of many types
        return None


def change_numbers(model, chance, files):
    """Put NaN, infinities, huge or subnormal values into a constant; any values if integer."""
    tensor = some_tensor(model, chance)
    array = _decoded(tensor)
    if array is None or not array.size:
        return
    flat = array.reshape(-1)
    at = slice(None) if chance.random() < 0.3 else chance.randrange(array.size)
    if array.dtype.kind == "f":
        flat[at] = chance.choice(FLOATS)
    elif array.dtype.kind in "iu":
        info = np.iinfo(array.dtype)
        value = chance.choice([-3, -2, -1, 0, 1, 2, 3, 4]) if chance.random() < 0.7 else (
            chance.choice(INTS)
        )  # fmt: skip
        flat[at] = min(max(value, info.min), info.max)
    elif array.dtype.kind == "b":
        flat[at] = not flat.flat[0]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def change_constant_shape(model, chance, files):
    """Give a constant another shape with consistent contents."""
    tensor = some_tensor(model, chance)
    array = _decoded(tensor)
    if array is None:
        return
    kind = chance.randrange(4)
    if kind == 0:
        array = np.expand_dims(array, 0)
    elif kind == 1:
        array = array.reshape(-1)
    elif kind == 2:
        array = array[:0] if array.ndim else array
    elif array.ndim:
        array = np.concatenate([array, array])
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def retype_constant(model, chance, files):
    """Convert a constant to another dtype."""
    tensor = some_tensor(model, chance)
    try:
        array = numpy_helper.to_array(tensor)
        kinds = ["f4", "f8", "f2", "i8", "i4", "i1", "u1", "u4", "u8", "i2", "?", "c8"]
        array = array.astype(chance.choice(kinds))
    except Exception:
        return
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def string_tensor(model, chance, files):
    """Make a constant a string tensor."""
    tensor = some_tensor(model, chance)
    words = np.array([chance.choice(NAMES) for _ in range(3)], object)
    tensor.CopyFrom(numpy_helper.from_array(words, tensor.name))


def repeat_constant(model, chance, files):
    """Duplicate or remove a constant."""
    tensors = some_graph(model, chance).initializer
    if not tensors:
        return
    at = chance.randrange(len(tensors))
    if chance.random() < 0.5:
        tensors.append(tensors[at])
    else:
        del tensors[at]


def sparse_constant(model, chance, files):
    """Make a constant sparse, validly or not."""
    graph = model.graph
    tensors = [t for t in graph.initializer if t.data_type == TensorProto.FLOAT and t.dims]
    if not tensors:
        return
    tensor = chance.choice(tensors)
    array = _decoded(tensor)
    if array is None:
        return
    at = np.flatnonzero(array)
    sparse = onnx.SparseTensorProto(dims=array.shape)
    sparse.values.CopyFrom(numpy_helper.from_array(array.reshape(-1)[at], tensor.name))
    if chance.random() < 0.5:
        at = at + chance.choice([-1, 1, 10**6, -(2**40), 2**62])
    sparse.indices.CopyFrom(numpy_helper.from_array(at.astype(np.int64), "at"))
    if chance.random() < 0.3:
        sparse.dims[0] = chance.choice(DIMS)
    if chance.random() < 0.2:
        _make_external(sparse.values, chance, files)
    kept = [t for t in graph.initializer if t.name != tensor.name]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    graph.sparse_initializer.append(sparse)


def external(model, chance, files):
    """Move the bytes of a constant to an external file, rightly or wrongly."""
    _make_external(some_tensor(model, chance), chance, files)


def _make_external(tensor, chance, files):
    raw = tensor.raw_data
    name = chance.choice(["w.bin", "w.bin", "w.bin", "größe.bin", "a b"])
    files[name] = b"\0" * 8 + raw + b"\0" * 8
    keys = {"location": name, "offset": "8", "length": str(len(raw))}
    odd = ["", "-1", "0", "7", "x", "1e3", "0x10", str(2**31), str(2**63 - 1), str(2**64),
           "9" * 5000, "٣", "\x00", " 8 ", "nan"]  # fmt: skip
    kind = chance.randrange(8)
    if kind == 0:
        keys["offset"] = chance.choice(odd)
    elif kind == 1:
        keys["length"] = chance.choice(odd)
    elif kind == 2:
        keys["location"] = chance.choice(
            ["/etc/passwd", "../w.bin", "missing", ".", "", "a\0b", "x" * 5000, "./w.bin",
             "/dev/zero", "*/_ORT_MEM_ADDR_/*", "a\nb", "\x1b[2J", "w.bin/", "mutant.onnx"]
        )  # fmt: skip
    elif kind == 3:
        keys["checksum"] = chance.choice(["0" * 40, "x", "\x1b[31m"])
        keys["odd\nkey"] = "1"
    elif kind == 4:
        del keys[chance.choice(list(keys))]
    tensor.ClearField("raw_data")
    if kind == 5:
        tensor.raw_data = raw
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in keys.items():
        tensor.external_data.add(key=key, value=value)
