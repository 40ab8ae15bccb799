"""Unsqueeze with a scalar for its axes, as PyTorch's exporter writes it for grouped attention."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tvmopt.frontend import import_onnx, layer_table, prepare


def test_scalar_axes() -> None:
    node = helper.make_node("Unsqueeze", ["x", "axes"], ["y"], "unsqueeze")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(1, "int64"), "axes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    prepared = prepare(model, {}).model
    module = import_onnx(prepared, layer_table(prepared))
    assert [int(e) for e in module["main"].ret_ty.shape] == [2, 1, 3]
