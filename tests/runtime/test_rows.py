"""Any number of rows, where a model computes each for itself."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import tvmopt
from tvmopt.errors import ArtifactError, ConfigError
from tvmopt.runtime import ModelMetadata, TensorSpec, load
from tvmopt.runtime.rows import run_rows

RNG = np.random.default_rng(0)
W = RNG.standard_normal((5, 4)).astype(np.float32)


def _model(nodes, inputs, outputs, rows="n") -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(i, TensorProto.FLOAT, [rows, w]) for i, w in inputs.items()],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [onnx.numpy_helper.from_array(W, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


DENSE = [
    helper.make_node("MatMul", ["x", "w"], ["m"]),
    helper.make_node("Add", ["m", "z"], ["y"]),
]


@pytest.fixture(scope="module", params=[1, 4])
def dense(request) -> tvmopt.runtime.CompiledModel:
    model = _model(DENSE, {"x": 5, "z": 4}, ["y"])
    return tvmopt.compile(model, {"x": (request.param, 5), "z": (request.param, 4)})


@pytest.mark.parametrize("rows", [0, 1, 2, 4, 5, 9])
def test_any_number_of_rows(dense, rows) -> None:
    assert dense.metadata.any_rows
    x = RNG.standard_normal((rows, 5)).astype(np.float32)
    z = RNG.standard_normal((rows, 4)).astype(np.float32)
    [y] = dense({"x": x, "z": z})
    assert y.shape == (rows, 4)
    np.testing.assert_allclose(y, x @ W + z, rtol=1e-5, atol=1e-5)


def test_inputs_have_as_many_rows_each(dense) -> None:
    with pytest.raises(ConfigError, match="as many rows each, but got 3, 2"):
        dense({"x": np.zeros((3, 5), np.float32), "z": np.zeros((2, 4), np.float32)})


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (3, 5, 1)])
def test_other_axes_have_their_size(dense, shape) -> None:
    with pytest.raises(ConfigError, match=r"input 'x' must have shape \(n, 5\), but got"):
        dense({"x": np.zeros(shape, np.float32), "z": np.zeros((3, 4), np.float32)})


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        # A sum over the rows, also beside an output for each row.
        (_model([helper.make_node("Softmax", ["x"], ["y"], axis=0)], {"x": 5}, ["y"]), (2, 5)),
        (_model([DENSE[0], helper.make_node("ReduceSum", ["m"], ["y"], keepdims=0)],
                {"x": 5}, ["m", "y"]), (2, 5)),
        # A number of rows that the file fixes.
        (_model(DENSE[:1], {"x": 5}, ["m"], rows=2), (2, 5)),
    ],
)  # fmt: skip
def test_a_model_that_mixes_rows_takes_its_own_number(model, shapes) -> None:
    compiled = tvmopt.compile(model, {"x": shapes})
    assert not compiled.metadata.any_rows
    compiled(np.zeros(shapes, np.float32))
    with pytest.raises(ConfigError, match=r"must have shape \(2, 5\), but got \(3, 5\)"):
        compiled(np.zeros((3, 5), np.float32))


@given(st.integers(0, 20), st.integers(1, 7))
def test_every_row_is_computed_once(count, rows) -> None:
    x = np.arange(count * 2).reshape(count, 2)
    calls = []

    def run(arrays):
        calls.append(arrays[0])
        return [arrays[0] + 1, arrays[0].sum(axis=1)]

    outputs = [TensorSpec("a", (rows, 2), "int64"), TensorSpec("b", (rows,), "int64")]
    a, b = run_rows(run, [x], rows, outputs)
    np.testing.assert_array_equal(a, x + 1)
    np.testing.assert_array_equal(b, x.sum(axis=1))
    assert len(calls) == -(-count // rows)
    assert all(len(call) == rows for call in calls)


@pytest.mark.parametrize(
    "changes",
    [{"any_rows": "yes"}, {"any_rows": True, "outputs": (TensorSpec("y", (), "float32"),)}],
)
def test_metadata_of_rows_is_checked(conv_bundle, tmp_path, changes) -> None:
    metadata = dataclasses.replace(ModelMetadata.read(conv_bundle), **changes)
    metadata.write(tmp_path)
    with pytest.raises(ArtifactError, match="any_rows"):
        load(tmp_path)
