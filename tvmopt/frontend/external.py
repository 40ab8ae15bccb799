"""Tensor data in files beside a model: only there, and no more than a model may hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from onnx.external_data_helper import load_external_data_for_model, uses_external_data

from tvmopt.errors import ModelError, in_one_line
from tvmopt.printable import shown

PROTOBUF_LIMIT = 2**31 - 1
"""Most bytes of a model with its tensors."""


def load_external_data(path: Path, model: onnx.ModelProto) -> None:
    """Read the external tensor data of the model at ``path`` into ``model``.

    Raises:
        ModelError: When a file is missing or lies outside the folder of the model, or when the data
            cannot be read as the model says.
    """
    _check_size(path, model)
    try:
        load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # offsets, lengths and files are what the model says they are
        raise ModelError(
            f"external tensor data of '{path}' could not be read: {in_one_line(error)}; "
            "copy the data files next to the model"
        ) from error
    left = next((tensor.name for tensor in _tensors(model) if uses_external_data(tensor)), None)
    if left is not None:  # ONNX Runtime would look for it by itself
        raise ModelError(
            "external tensor data must belong to initializers or attributes of nodes, but in "
            f"'{path}' tensor {left!r} is elsewhere; export the model with its data inside"
        )


def external_files(path: Path, model: onnx.ModelProto) -> dict[str, Path]:
    """Files that hold tensor data of the model at ``path``, by the location that it names.

    Raises:
        ModelError: When one is missing or lies outside the folder of the model.
    """
    return {
        entry.value: _check_inside(path, entry.value)
        for tensor in _tensors(model)
        if uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }


def _check_size(path: Path, model: onnx.ModelProto) -> None:
    """Raise where tensors refer to more than a model may hold: many may name the same bytes."""
    total = 0
    for tensor in _tensors(model):
        if not uses_external_data(tensor):
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if "location" not in entries:
            raise ModelError(
                f"external tensor data must name its file, but tensor {tensor.name!r} of '{path}' "
                "has no location; export the model again"
            )
        size = _check_inside(path, entries["location"]).stat().st_size
        try:
            total += int(entries.get("length") or size - int(entries.get("offset") or 0))
        except ValueError as error:
            raise ModelError(
                f"offset and length of external tensor data must be whole numbers, but tensor "
                f"{tensor.name!r} of '{path}' has {in_one_line(error)}; export the model again"
            ) from error
    if total > PROTOBUF_LIMIT:
        raise ModelError(
            f"model must be under 2 GiB with its weights, but tensors of '{path}' name "
            f"{total / 2**30:.1f} GiB of external data; export it again"
        )


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """``graph`` and the graphs within it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for sub in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from graphs(sub)


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)
        yield from _attribute_tensors(function.attribute_proto)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        yield from _attribute_tensors(node.attribute)


def _attribute_tensors(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        if attribute.HasField("g"):
            yield from _graph_tensors(attribute.g)
        for sub in attribute.graphs:
            yield from _graph_tensors(sub)


def _check_inside(path: Path, location: str) -> Path:
    folder = path.parent.resolve()
    try:
        file = (folder / location).resolve()
        exists = file.is_file()
    except (TypeError, ValueError, OSError, RuntimeError) as error:  # no text, a NUL, a loop
        raise ModelError(
            f"external tensor data must lie in a file, but '{path}' names {shown(location)}: "
            f"{in_one_line(error, 100)}; export the model again"
        ) from error
    if not file.is_relative_to(folder):
        raise ModelError(
            f"external tensor data must lie in the folder of the model, but '{path}' names "
            f"{shown(location)}, which is outside it; re-export the model with relative locations"
        )
    if not exists:
        raise ModelError(
            f"external tensor data must exist, but '{path}' names {shown(location)} and there is "
            "no such file next to the model; copy it there"
        )
    return file
