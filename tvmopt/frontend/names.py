"""Validate names in a model: they appear in logs, tables, plots and files.

A control character could end a comment, a table row or a log line, or control a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from tvmopt.errors import ModelError
from tvmopt.printable import is_printable

_SHOWN = 80
# Names become run tags, whose length a tracking store limits.
_MOST_CHARACTERS = 1000


def check_names(model: onnx.ModelProto) -> None:
    """Raise :class:`ModelError` for the first name that is too long or not printable."""
    for kind, name in _names(model):
        _check_length(kind, name)
        if isinstance(name, bytes):  # protobuf returns bytes for invalid UTF-8
            raise ModelError(
                f"names in a model must be UTF-8, but {_with_article(kind)} is called "
                f"{ascii(name)[:_SHOWN]}; rename it and export the model again"
            )
        if not is_printable(name):
            raise ModelError(
                "names in a model must hold no control characters, but "
                f"{_with_article(kind)} is called "
                f"{ascii(name)[:_SHOWN]}; rename it and export the model again"
            )


def _check_length(kind: str, name: str | bytes) -> None:
    if len(name) > _MOST_CHARACTERS:
        raise ModelError(
            f"names in a model must have at most {_MOST_CHARACTERS} characters, but "
            f"{_with_article(kind)} has {len(name)}: {ascii(name)[:_SHOWN]}...; rename it and "
            "export the model again"
        )


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _names(model: onnx.ModelProto) -> Iterator[tuple[str, str | bytes]]:
    for opset in model.opset_import:
        yield "domain", opset.domain
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield "function", function.name
        yield "domain", function.domain
        yield from (("value", name) for name in (*function.input, *function.output))
        for node in function.node:
            yield from _of_node(node)


def _of_graph(graph: onnx.GraphProto) -> Iterator[tuple[str, str | bytes]]:
    yield "graph", graph.name
    for kind, values in (
        ("input", graph.input), ("output", graph.output), ("value", graph.value_info)
    ):  # fmt: skip
        for value in values:
            yield kind, value.name
            for dim in value.type.tensor_type.shape.dim:
                yield "dimension", dim.dim_param
    yield from (("initializer", tensor.name) for tensor in graph.initializer)
    yield from (("initializer", tensor.values.name) for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield from _of_node(node)


def _of_node(node: onnx.NodeProto) -> Iterator[tuple[str, str | bytes]]:
    yield "node", node.name
    yield "operator", node.op_type
    yield "domain", node.domain
    yield from (("value", name) for name in (*node.input, *node.output))
    for attribute in node.attribute:
        yield "attribute", attribute.name
        if attribute.HasField("g"):
            yield from _of_graph(attribute.g)
        for graph in attribute.graphs:
            yield from _of_graph(graph)
