"""Replace ZipMap by its scores: maps of class to score become columns."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from tvmopt.frontend.categories.attributes import attributes_of, text
from tvmopt.frontend.operator_sets import ML_DOMAIN


def drop_zip_maps(graph: onnx.GraphProto) -> dict[str, tuple[str, ...]]:
    """Replace each ZipMap of a graph in place; return the class of each column by output."""
    columns: dict[str, tuple[str, ...]] = {}
    outputs = {value.name: value for value in graph.output}
    for node in graph.node:
        if node.op_type != "ZipMap" or node.domain != ML_DOMAIN:
            continue
        given = attributes_of(node)
        classes = given.get("classlabels_strings") or given.get("classlabels_int64s") or ()
        columns[node.output[0]] = tuple(text(label) for label in classes)
        node.op_type, node.domain = "Identity", ""
        del node.attribute[:]
        if node.output[0] in outputs:
            kind = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
            outputs[node.output[0]].type.CopyFrom(kind)
    return columns
