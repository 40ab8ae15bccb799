"""Rewrite the outputs of an exported ONNX graph: names, types, order, and the first axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.exporters.exported import ROWS

_OPSET = 15


@dataclasses.dataclass(frozen=True)
class WantedOutput:
    """An output to write.

    Attributes:
        value: The value of the graph that it shows.
        name: Its name.
        dtype: Its NumPy dtype.
        width: Extent of its second axis; 0 for one axis.
    """

    value: str
    name: str
    dtype: str
    width: int = 0


def with_outputs(model: onnx.ModelProto, wanted: Sequence[WantedOutput]) -> None:
    """Replace the outputs of ``model``, and drop the nodes that no output needs.

    Args:
        model: The model; changes.
        wanted: Its outputs in order.
    """
    graph = model.graph
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    for output in wanted:
        if output.name in taken:  # free the name for the output
            _rename(graph, output.name, f"inner/{output.name}")
    values = [
        f"inner/{output.value}" if output.value in {one.name for one in wanted} & taken
        else output.value
        for output in wanted
    ]  # fmt: skip
    del graph.output[:]
    for output, value in zip(wanted, values, strict=True):
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(output.dtype))
        cast = f"cast/{output.name}"
        graph.node.append(helper.make_node("Cast", [value], [cast], name=cast, to=dtype))
        shape = f"shape/{output.name}"
        extents = [-1, output.width] if output.width else [-1]
        graph.initializer.append(numpy_helper.from_array(np.array(extents, np.int64), shape))
        graph.node.append(
            helper.make_node("Reshape", [cast, shape], [output.name], name=f"out/{output.name}")
        )
        dims: list[str | int | None] = [ROWS, output.width] if output.width else [ROWS]
        graph.output.append(helper.make_tensor_value_info(output.name, dtype, dims))
    for value_info in graph.input:
        value_info.type.tensor_type.shape.dim[0].dim_param = ROWS
    del graph.value_info[:]
    drop_unused(graph)
    if all(entry.domain not in ("", "ai.onnx") for entry in model.opset_import):
        # onnxmltools names only ai.onnx.ml for a model of trees alone.
        model.opset_import.append(helper.make_opsetid("", _OPSET))


def add_one_hot(model: onnx.ModelProto, label: str, classes: int, name: str) -> None:
    """Add a float32 value ``name`` of shape (rows, classes): 1 at the label, an int64, else 0."""
    graph = model.graph
    dtype = TensorProto.INT64
    numbers, column = f"{name}/classes", f"{name}/column"
    graph.initializer.append(
        numpy_helper.from_array(np.arange(classes, dtype=np.int64)[None], numbers)
    )
    graph.initializer.append(numpy_helper.from_array(np.array([-1, 1], np.int64), column))
    graph.node.extend(
        [
            helper.make_node("Cast", [label], [f"{name}/label"], name=f"{name}/label", to=dtype),
            helper.make_node(
                "Reshape", [f"{name}/label", column], [f"{name}/row"], name=f"{name}/row"
            ),
            helper.make_node("Equal", [f"{name}/row", numbers], [f"{name}/is"], name=f"{name}/is"),
            helper.make_node("Cast", [f"{name}/is"], [name], name=name, to=TensorProto.FLOAT),
        ]
    )


def drop_unused(graph: onnx.GraphProto) -> None:
    """Drop the nodes and initializers that no output needs."""
    needed = {output.name for output in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            needed.update(node.input)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    for inner in attribute.g.node:
                        needed.update(inner.input)
            kept.append(node)
    nodes = list(reversed(kept))
    tensors = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.initializer[:]
    graph.initializer.extend(tensors)


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for side in (node.input, node.output):
            for place, name in enumerate(side):
                if name == old:
                    side[place] = new
    for named in (*graph.initializer, *graph.value_info):
        if named.name == old:
            named.name = new
