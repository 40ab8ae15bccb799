"""Pick random parts of an ONNX model; add an empty part where the model has none."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto

from tests.fuzz.aborts import answer
from tests.fuzz.vocabulary import NAMES


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Return ``graph`` and all graphs inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def some_graph(model, chance):
    return chance.choice(list(graphs(model.graph)))


def some_node(model, chance):
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    return chance.choice(nodes) if nodes else model.graph.node.add()


def some_tensor(model, chance):
    tensors = [t for graph in graphs(model.graph) for t in graph.initializer]
    return chance.choice(tensors) if tensors else model.graph.initializer.add()


def some_value(model, chance):
    values = [
        v for graph in graphs(model.graph) for v in (*graph.input, *graph.output, *graph.value_info)
    ]
    return chance.choice(values) if values else model.graph.output.add()


def some_name(model, chance):
    """Return a name, mostly one from the model."""
    names = [n for graph in graphs(model.graph) for node in graph.node for n in node.output]
    names += [t.name for graph in graphs(model.graph) for t in graph.initializer]
    names += [v.name for graph in graphs(model.graph) for v in graph.input]
    return chance.choice(names) if names and chance.random() < 0.9 else chance.choice(NAMES)


def floats_of(model):
    """Return names of values that shape inference knows to be float tensors."""
    graph = _inferred(model).graph
    return [
        v.name
        for v in (*graph.input, *graph.value_info, *graph.output)
        if v.type.tensor_type.elem_type == TensorProto.FLOAT
    ]


def _inferred(model):
    """Return ``model`` with inferred shapes; unchanged when onnx rejects it or aborts."""
    content = answer(lambda: onnx.shape_inference.infer_shapes(model).SerializeToString())
    return model if content is None else onnx.ModelProto.FromString(content)
