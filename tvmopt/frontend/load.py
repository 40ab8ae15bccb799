"""Read an ONNX file from disk, refusing what is corrupt or reaches outside the model's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import load_external_data_for_model, uses_external_data

from tvmopt.errors import ModelError
from tvmopt.frontend.names import check_names


def load_onnx(path: str | Path) -> onnx.ModelProto:
    """Load a model with its external tensor data.

    Raises:
        ModelError: When the file is missing, is not ONNX, or names tensor data that is missing or
            lies outside the folder of the model.
    """
    path = Path(path)
    model = _parse(path)
    check_names(model)
    for location in _external_files(model):
        _check_inside(path, location)
    try:
        load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"external tensor data of '{path}' could not be read: {_one_line(error)}; "
            "copy the data files next to the model"
        ) from error
    return model


def model_digest(path: str | Path) -> str:
    """sha256 over the model file and every external data file it names, as hex."""
    path = Path(path)
    model = _parse(path)
    digest = hashlib.sha256(path.read_bytes())
    for location in sorted(set(_external_files(model))):
        file = _check_inside(path, location)
        digest.update(location.encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _parse(path: Path) -> onnx.ModelProto:
    _check_file(path)
    try:  # whatever the file is called: the other formats are for people to read
        model = onnx.load_model(str(path), format="protobuf", load_external_data=False)
    except (DecodeError, OSError, ValueError) as error:
        raise ModelError(
            f"model must be a valid ONNX file, but '{path}' could not be parsed: "
            f"{_one_line(error)}; export or copy it again"
        ) from error
    if not model.graph.node and not model.graph.output:
        raise ModelError(
            f"model must hold a graph with outputs, but '{path}' holds none; "
            "it is empty, truncated, or no ONNX file"
        )
    return model


def _check_file(path: Path) -> None:
    """Raise unless ``path`` is a regular file: reading a pipe or a device might never end."""
    try:
        if not path.exists():
            raise ModelError(f"model must be an existing ONNX file, but there is none at '{path}'")
        if path.is_dir():
            raise ModelError(f"model must be an ONNX file, but '{path}' is a folder")
        if not path.is_file():
            raise ModelError(f"model must be a regular file, but '{path}' is a pipe or a device")
    except OSError as error:  # a path too long, a loop of links
        raise ModelError(
            f"model must be an existing ONNX file, but '{str(path)[:100]}' cannot be opened: "
            f"{error.strerror}"
        ) from error


def _external_files(model: onnx.ModelProto) -> Iterator[str]:
    for tensor in _tensors(model):
        if uses_external_data(tensor):
            for entry in tensor.external_data:
                if entry.key == "location":
                    yield entry.value


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from _graph_tensors(attribute.g)
            for sub in attribute.graphs:
                yield from _graph_tensors(sub)


def _check_inside(path: Path, location: str) -> Path:
    folder = path.parent.resolve()
    try:
        file = (folder / location).resolve()
    except (ValueError, OSError, RuntimeError) as error:  # a NUL, a loop of links
        raise ModelError(
            f"external tensor data must lie in a file, but '{path}' names "
            f"{ascii(location)[:100]}: {_one_line(error)}; export the model again"
        ) from error
    if not file.is_relative_to(folder):
        raise ModelError(
            f"external tensor data must lie in the folder of the model, but '{path}' names "
            f"'{location}', which is outside it; re-export the model with relative locations"
        )
    if not file.is_file():
        raise ModelError(
            f"external tensor data must exist, but '{path}' names '{location}' and there is no "
            "such file next to the model; copy it there"
        )
    return file


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
