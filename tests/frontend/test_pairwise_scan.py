"""Scans over pairs of rows: the same answers without a Scan, and others left alone."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmopt.frontend.pairwise_scan import rewrite_pairwise_scans


def _model(steps, state="matrix", *, reverse=False):
    """A model of one Scan whose body is ``steps`` and ends with the value ``out``."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", [state], ["same"]),
            *(helper.make_node(op, inputs, [out], **more) for op, inputs, out, more in steps),
        ],
        "body",
        [
            helper.make_tensor_value_info("matrix", TensorProto.FLOAT, [4, 3]),
            helper.make_tensor_value_info("row", TensorProto.FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info("same", TensorProto.FLOAT, [4, 3]),
            helper.make_tensor_value_info("out", TensorProto.FLOAT, [4]),
        ],
        [
            numpy_helper.from_array(np.array([1]), "axis"),
            numpy_helper.from_array(np.array([3.0], "float32"), "power"),
        ],
    )
    scan = helper.make_node(
        "Scan", ["m", "x"], ["last", "y"], body=body, num_scan_inputs=1, name="scan",
        scan_input_directions=[int(reverse)],
    )  # fmt: skip
    graph = helper.make_graph(
        [scan],
        "g",
        [
            helper.make_tensor_value_info("m", TensorProto.FLOAT, [4, 3]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 3]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("last", "y")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


_DIFFERENCE = ("Sub", ["matrix", "row"], "d", {})
_METRICS = {
    "euclidean": [
        _DIFFERENCE,
        ("ReduceSumSquare", ["d", "axis"], "s", {"keepdims": 0}),
        ("Sqrt", ["s"], "out", {}),
    ],
    "manhattan": [
        _DIFFERENCE,
        ("Abs", ["d"], "a", {}),
        ("ReduceSum", ["a", "axis"], "out", {"keepdims": 0}),
    ],
    "minkowski": [
        _DIFFERENCE,
        ("Abs", ["d"], "a", {}),
        ("Pow", ["a", "power"], "p", {}),
        ("ReduceSum", ["p", "axis"], "out", {"keepdims": 0}),
    ],
}


def _run(model):
    rng = np.random.default_rng(0)
    shapes = {"m": (4, 3), "x": (6, 3)}
    inputs = {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


@pytest.mark.parametrize("metric", _METRICS)
def test_distances(metric) -> None:
    model = _model(_METRICS[metric])
    want = _run(model)
    rewrite_pairwise_scans(model)
    assert all(node.op_type != "Scan" for node in model.graph.node)
    for got, expected in zip(_run(model), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


_MIXED = [
    ("ReduceSum", ["matrix", "axis"], "s", {"keepdims": 0}),
    ("Mul", ["row", "row"], "r", {}),
    ("ReduceSum", ["r"], "t", {"keepdims": 0}),
    ("Mul", ["s", "t"], "out", {}),
]


@pytest.mark.parametrize(
    "model",
    [
        _model(_METRICS["manhattan"], reverse=True),
        _model([*_METRICS["manhattan"], ("Abs", ["d"], "next", {})], state="next"),
        _model(_MIXED),
    ],
    ids=["backwards", "state changes", "sum over all axes"],
)
def test_other_scans_stay(model) -> None:
    before = model.SerializeToString(deterministic=True)
    rewrite_pairwise_scans(model)
    assert model.SerializeToString(deterministic=True) == before
