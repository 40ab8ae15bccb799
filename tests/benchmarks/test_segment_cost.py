"""The cost of a segment: where a model is cut, and what is put there."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from benchmarks import segment_cost

_node = onnx.helper.make_node


def _with_a_branch(make_model):
    nodes = [
        _node("Relu", ["x"], ["a"], name="a"),
        _node("Tanh", ["a"], ["b"], name="b"),
        _node("Add", ["a", "b"], ["c"], name="c"),
        _node("Abs", ["c"], ["d"], name="d"),
        _node("Mul", ["c", "d"], ["y"], name="y"),
    ]
    return make_model(nodes, {"x": ("float32", [2, 3])}, {"y": ("float32", [2, 3])}, {})


def test_the_cut_is_where_everything_flows_through_one_value(make_model):
    assert segment_cost.narrow_value(_with_a_branch(make_model)) == "c"


def test_a_model_without_such_a_value_is_refused(make_model):
    nodes = [_node("Relu", ["x"], ["a"]), _node("Add", ["a", "x"], ["y"])]
    model = make_model(nodes, {"x": ("float32", [2])}, {"y": ("float32", [2])}, {})
    with pytest.raises(ValueError, match="must flow through one value"):
        segment_cost.narrow_value(model)


def test_the_operator_is_behind_the_value(make_model):
    model = _with_a_branch(make_model)
    changed, node = segment_cost.with_operator(model, "c")
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    c = np.maximum(x, 0) + np.tanh(np.maximum(x, 0))
    gelu = c / (1 + np.exp(-c))
    found = ort.InferenceSession(changed.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, gelu * np.abs(gelu), atol=1e-6)
    assert node.op_type == "QuickGelu"


def test_one_model_is_measured(tmp_path, make_model, capsys):
    nodes = [_node("Exp", ["x"], ["a"]), _node("Neg", ["a"], ["b"]), _node("Tanh", ["b"], ["y"])]
    path = tmp_path / "net.onnx"
    inputs, outputs = {"x": ("float32", [8, 64])}, {"y": ("float32", [8, 64])}
    onnx.save_model(make_model(nodes, inputs, outputs, {}), str(path))
    code = segment_cost.main(["--model", str(path), "--threads", "1", "--seconds", "0.2"])
    assert code == 0
    assert "| net " in capsys.readouterr().out
