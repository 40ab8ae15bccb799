"""Load an ONNX file; reject corrupt files and data outside the model's folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from tvmopt.digest import sha256_file
from tvmopt.errors import ModelError, in_one_line
from tvmopt.frontend.categories import without_strings
from tvmopt.frontend.crashing_sizes import check_sizes
from tvmopt.frontend.external import (
    PROTOBUF_LIMIT,
    external_ranges,
    graphs,
    load_external_data,
    tensors,
)  # fmt: skip
from tvmopt.frontend.names import check_names


def load_onnx(path: str | Path, *, keep_strings: bool = False) -> onnx.ModelProto:
    """Load a model with its external tensor data.

    Args:
        path: The ONNX file.
        keep_strings: Whether string inputs and outputs stay; else they become codes
            (:mod:`tvmopt.frontend.categories`).

    Raises:
        ModelError: When strings are used otherwise than as categories.
        ModelError: When the file is missing, is not ONNX, or refers to tensor data that is missing
            or outside the model's folder.
    """
    path = Path(path)
    model = _parse(path)
    check_names(model)
    _check_sparse(model)
    _check_defaults(model)
    load_external_data(path, model)
    for tensor in tensors(model):
        if tensor.HasField("segment"):  # ONNX Runtime ignores it; numpy_helper refuses it
            tensor.ClearField("segment")
    check_sizes(model)
    return model if keep_strings else without_strings(model)


def model_digest(path: str | Path) -> str:
    """Return the sha256 of the model file and its external tensor data, as hex.

    Only the referenced bytes of an external file are read, whatever its size.
    """
    path = Path(path)
    ranges = external_ranges(path, _parse(path))
    if not ranges:
        return sha256_file(path)
    digest = hashlib.sha256(bytes.fromhex(sha256_file(path)))
    for external in ranges:
        digest.update(f"{external.location}\0{external.offset}\0".encode())
        digest.update(external.sha256())
    return digest.hexdigest()


def _parse(path: Path) -> onnx.ModelProto:
    _check_file(path)
    try:  # parse as protobuf whatever the file name; other formats are for people
        model = onnx.load_model(str(path), format="protobuf", load_external_data=False)
    except (DecodeError, OSError, ValueError) as error:
        raise ModelError(
            f"model must be a valid ONNX file, but '{path}' could not be parsed: "
            f"{in_one_line(error)}; export or copy it again"
        ) from error
    if not model.graph.output:
        raise ModelError(
            f"model must hold a graph with outputs, but '{path}' holds none; "
            "it is empty, truncated, or no ONNX file"
        )
    return model


def _check_file(path: Path) -> None:
    """Raise unless ``path`` is a regular file: reading a pipe or a device may never end."""
    try:
        if not path.exists():
            raise ModelError(f"model must be an existing ONNX file, but there is none at '{path}'")
        if path.is_dir():
            raise ModelError(f"model must be an ONNX file, but '{path}' is a folder")
        if not path.is_file():
            raise ModelError(f"model must be a regular file, but '{path}' is a pipe or a device")
        if path.stat().st_size > PROTOBUF_LIMIT:
            raise ModelError(
                f"model must be a file under 2 GiB, but '{path}' has {path.stat().st_size} bytes; "
                "keep its weights in external data"
            )
    except OSError as error:  # a path too long, a loop of links
        raise ModelError(
            f"model must be an existing ONNX file, but '{str(path)[:100]}' cannot be opened: "
            f"{error.strerror}"
        ) from error


def _check_defaults(model: onnx.ModelProto) -> None:
    """Raise when an initializer that is an input's default has another dtype or shape."""
    declared = {value.name: value.type.tensor_type for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in declared:
            continue
        kind = declared[tensor.name]
        if tensor.data_type != kind.elem_type:
            raise ModelError(
                f"initializer {tensor.name!r} must have the type of the input of its name, but has "
                f"type {tensor.data_type}, and the input {kind.elem_type} "
                "(numbers of onnx.TensorProto.DataType); export the model again"
            )
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim]
        if kind.HasField("shape") and not _is_of_shape(list(tensor.dims), dims):
            raise ModelError(
                f"initializer {tensor.name!r} must have the shape of the input of its name, but "
                f"has {list(tensor.dims)}, and the input {dims}; export the model again"
            )


def _is_of_shape(dims: list[int], declared: list[int]) -> bool:
    """Return whether ``dims`` match the declared ones; a negative declared one matches any."""
    return len(dims) == len(declared) and all(
        wanted < 0 or wanted == got for got, wanted in zip(dims, declared, strict=True)
    )


def _check_sparse(model: onnx.ModelProto) -> None:
    for graph in graphs(model.graph):
        for tensor in graph.sparse_initializer:
            raise ModelError(
                f"initializers must be dense, but {tensor.values.name!r} is sparse; export the "
                "model with dense initializers"
            )
