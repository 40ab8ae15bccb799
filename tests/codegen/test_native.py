"""Networks of static shapes compile to native libraries, which equal ONNX Runtime."""

from __future__ import annotations

import logging
import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tvmopt


def _value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def _model(nodes, inputs, outputs, constants=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


def _check(model, inputs, *, native=True) -> None:
    compiled = tvmopt.compile(model, threads=2)
    assert compiled.metadata.native is native
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for _ in range(2):
        got = compiled(inputs)
        for ours, theirs in zip(got, session.run(None, inputs), strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


def test_one_tensor_is_two_outputs() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["y"], ["z"])]
    outputs = [_value("y", [4, 8]), _value("z", [4, 8])]
    _check(_model(nodes, [_value("x", [4, 8])], outputs), {"x": X})


def test_an_output_is_an_input_or_a_constant() -> None:
    constant = onnx.numpy_helper.from_array(np.arange(6, dtype=np.int64), "c")
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("Identity", ["c"], ["z"]),
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
    ]
    shape = onnx.numpy_helper.from_array(np.array([8, 4]), "shape")
    outputs = [_value("y", [4, 8]), _value("z", [6], TensorProto.INT64), _value("r", [8, 4])]
    _check(_model(nodes, [_value("x", [4, 8])], outputs, [constant, shape]), {"x": X})


def test_scalars() -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Add", ["s", "e"], ["d"]),
    ]
    outputs = [_value("s", []), _value("d", [])]
    inputs = [_value("x", [4, 8]), _value("e", [])]
    _check(_model(nodes, inputs, outputs), {"x": X, "e": np.array(2.5, np.float32)})


def _branch(name, node, output):
    return helper.make_graph(node, name, [], [_value(output, [4, 8])])


@pytest.mark.parametrize("positive", [True, False])
def test_an_if_runs_one_branch(positive) -> None:
    then = _branch("then", [helper.make_node("Exp", ["x"], ["t"])], "t")
    otherwise = _branch(
        "otherwise",
        [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Relu", ["n"], ["o"])],
        "o",
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise),
        helper.make_node("Mul", ["y", "x"], ["z"]),
    ]
    zero = onnx.numpy_helper.from_array(np.array(0, np.float32), "zero")
    model = _model(nodes, [_value("x", [4, 8])], [_value("z", [4, 8])], [zero])
    _check(model, {"x": np.abs(X) if positive else -np.abs(X)})


def test_a_library_needs_nothing_of_tvm(tmp_path) -> None:
    model = _model(
        [helper.make_node("Softmax", ["x"], ["y"])], [_value("x", [4, 8])], [_value("y", [4, 8])]
    )
    tvmopt.compile(model, output=tmp_path / "bundle")
    symbols = subprocess.run(
        ["nm", "-D", tmp_path / "bundle" / "model.so"], capture_output=True, text=True, check=True
    ).stdout
    assert "tvmopt_main" in symbols
    assert "TVM" not in symbols


def test_a_kernel_that_calls_tvm_needs_the_virtual_machine() -> None:
    two = onnx.numpy_helper.from_array(np.array([2]), "k")
    outputs = [_value("y", [4, 2]), _value("i", [4, 2], TensorProto.INT64)]
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "i"])]
    _check(_model(nodes, [_value("x", [4, 8])], outputs, [two]), {"x": X}, native=False)


def test_a_shape_that_is_known_at_run_time_needs_the_virtual_machine(caplog) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    model = _model(nodes, [_value("x", [4, 8])], [_value("y", [2, None], TensorProto.INT64)])
    with caplog.at_level(logging.INFO, "tvmopt"):
        compiled = tvmopt.compile(model, fallback="refuse")
    assert not compiled.metadata.native
    assert "the network runs in TVM's virtual machine: " in caplog.text
    np.testing.assert_array_equal(compiled(X)[0], np.stack(np.nonzero(X)))
