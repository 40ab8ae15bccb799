"""External tensor data of ONNX models, confined to the model's folder and limited in size."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from onnx.external_data_helper import load_external_data_for_model, uses_external_data

from tvmopt.errors import ModelError, in_one_line
from tvmopt.printable import shown

PROTOBUF_LIMIT = 2**31 - 1
"""Most bytes of a model with its tensors."""
_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True, order=True)
class ExternalRange:
    """Byte range of an external file that a tensor refers to.

    Attributes:
        location: File name as stored in the model.
        offset: Offset in bytes.
        length: Length in bytes.
        file: Path of the file.
    """

    location: str
    offset: int
    length: int
    file: Path

    def sha256(self) -> bytes:
        """Return the sha256 of the bytes."""
        digest, left = hashlib.sha256(), self.length
        with self.file.open("rb") as file:
            file.seek(self.offset)
            while left and (block := file.read(min(left, _BLOCK))):
                digest.update(block)
                left -= len(block)
        return digest.digest()


def load_external_data(path: Path, model: onnx.ModelProto) -> None:
    """Read the external tensor data of the model at ``path`` into ``model``.

    Raises:
        ModelError: When a file is missing or outside the model's folder, or when the data cannot be
            read as the model specifies.
    """
    external_ranges(path, model)
    try:
        load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # the model controls offsets, lengths and file names
        raise ModelError(
            f"external tensor data of '{path}' could not be read: {in_one_line(error)}; "
            "copy the data files next to the model"
        ) from error
    left = next((tensor.name for tensor in tensors(model) if uses_external_data(tensor)), None)
    if left is not None:  # ONNX Runtime would resolve it without our checks
        raise ModelError(
            "external tensor data must belong to initializers or attributes of nodes, but in "
            f"'{path}' tensor {left!r} is elsewhere; export the model with its data inside"
        )


def external_ranges(path: Path, model: onnx.ModelProto) -> list[ExternalRange]:
    """Return the distinct external byte ranges of the model at ``path``, sorted.

    Raises:
        ModelError: When a file is missing or outside the model's folder, when a range exceeds its
            file, or when the total exceeds the limit of a model; many tensors may share bytes.
    """
    found = [_range(path, tensor) for tensor in tensors(model) if uses_external_data(tensor)]
    total = sum(external.length for external in found)
    if total > PROTOBUF_LIMIT:
        raise ModelError(
            f"model must be under 2 GiB with its weights, but tensors of '{path}' name "
            f"{total / 2**30:.1f} GiB of external data; export it again"
        )
    return sorted(set(found))


def _range(path: Path, tensor: onnx.TensorProto) -> ExternalRange:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if "location" not in entries:
        raise ModelError(
            f"external tensor data must name its file, but tensor {tensor.name!r} of '{path}' "
            "has no location; export the model again"
        )
    file = _check_inside(path, entries["location"])
    size = file.stat().st_size
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or 0) or size - offset  # to the end, as in ONNX
    except ValueError as error:
        raise ModelError(
            f"offset and length of external tensor data must be whole numbers, but tensor "
            f"{tensor.name!r} of '{path}' has {in_one_line(error)}; export the model again"
        ) from error
    if not (0 <= offset <= size and 0 <= length <= size - offset):
        raise ModelError(
            f"external tensor data must lie in its file, but tensor {tensor.name!r} of '{path}' "
            f"names {length} bytes from {offset} of {size}; copy the file or export the model again"
        )
    return ExternalRange(entries["location"], offset, length, file)


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield ``graph`` and its nested graphs."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for sub in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from graphs(sub)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model: of graphs, of attributes, and of functions."""
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
    except (TypeError, ValueError, OSError, RuntimeError) as error:  # no text, a NUL, a link loop
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
