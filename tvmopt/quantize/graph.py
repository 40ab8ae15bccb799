"""Index of an ONNX graph by tensor: producers, consumers, types and constants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper


class Graph:
    """Producers, consumers and types of the tensors of the main graph; a snapshot.

    Args:
        graph: The main graph. Reads inside a branch (If, Loop) count as reads of the node that
            holds the branch.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes = list(graph.node)
        self.constants = {i.name: i for i in graph.initializer}
        self.outputs = {o.name for o in graph.output}
        self.inputs = [i.name for i in graph.input if i.name not in self.constants]
        self.producer = {name: node for node in self.nodes for name in node.output if name}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(reads(node)):
                self.consumers.setdefault(name, []).append(node)
        self._values = {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}

    def is_float(self, name: str) -> bool:
        """Return whether a tensor is float32."""
        if name in self.constants:
            return self.constants[name].data_type == onnx.TensorProto.FLOAT
        value = self._values.get(name)
        return value is not None and value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT

    def is_activation(self, name: str) -> bool:
        """Return whether a tensor is float32 and not constant."""
        return bool(name) and name not in self.constants and self.is_float(name)

    def dims(self, name: str) -> tuple[int, ...] | None:
        """Return the static shape of a tensor; None when unknown."""
        if name in self.constants:
            return tuple(self.constants[name].dims)
        value = self._values.get(name)
        if value is None or not value.type.tensor_type.HasField("shape"):
            return None
        dims = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        return None if 0 in dims else dims

    def array(self, name: str) -> np.ndarray:
        """Return the value of a constant."""
        return numpy_helper.to_array(self.constants[name])


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors that a node reads, including outer tensors that its branches read."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for sub in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            own = {i.name for i in (*sub.initializer, *sub.input)}
            own.update(name for inner in sub.node for name in inner.output)
            for inner in sub.node:
                yield from (name for name in reads(inner) if name not in own)
            yield from (o.name for o in sub.output if o.name not in own)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node as Python values."""
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
