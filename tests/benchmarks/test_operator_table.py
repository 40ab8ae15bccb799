"""The built-in operator rows have unique names, and match the layers of the zoo models."""

from __future__ import annotations

import onnx

from benchmarks.model_operators import model_operators
from benchmarks.operator_table import (
    KINDS,
    built_in,
    mobilenet_v2_convolutions,
    resnet50_convolutions,
)
from benchmarks.operators import Convolution
from benchmarks.zoo_topologies import mobilenet_v2, resnet


def test_names_are_unique():
    names = [operator.name for _, operator in built_in()]
    assert len(set(names)) == len(names)
    assert not any("," in name for name in names)
    assert {kind for kind, _ in built_in()} <= set(KINDS)


def _folded_shapes(model, batch=1):
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = batch
    return onnx.shape_inference.infer_shapes(model)


def test_resnet_rows_are_those_of_the_model():
    rows, left = model_operators(_folded_shapes(resnet((3, 4, 6, 3), bottleneck=True)))
    assert not left
    found = {op for kind, op in rows if kind == "conv" and op.kernel != (7, 7)}
    assert found == set(resnet50_convolutions())
    table = {op for _, op in built_in()}
    # The stem is included; the row of the classifier has its shape in its name.
    assert {op for _, op in rows} <= table


def test_mobilenet_rows_are_those_of_the_model():
    rows, _ = model_operators(_folded_shapes(mobilenet_v2()))
    found = {op for _, op in rows if isinstance(op, Convolution) and op.channels != 3}
    assert found == set(mobilenet_v2_convolutions())
    assert {op for kind, op in rows if kind == "depthwise"} == {op for op in found if op.depthwise}
