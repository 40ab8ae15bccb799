"""Shapes behind operators that ONNX does not know."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
from onnx import helper

import tvmopt
from tvmopt.frontend import import_with_segments, prepare
from tvmopt.frontend.inferred_shapes import is_static, with_inferred_shapes
from tvmopt.frontend.prepare import session_options

_node = helper.make_node
_X = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype("float32")


def _model(make_model, middle, y_shape):
    """Return a convolution, the nodes ``middle`` from ``a`` to ``b``, and a convolution."""
    weight = np.random.default_rng(1).standard_normal((3, 3, 3, 3)).astype("float32")
    nodes = [
        _node("Conv", ["x", "w"], ["a"], name="first", pads=[1] * 4),
        *middle,
        _node("Conv", ["b", "w"], ["y"], name="last", pads=[1] * 4),
    ]
    model = make_model(
        nodes, {"x": ("float32", _X.shape)}, {"y": ("float32", y_shape)}, {"w": weight}
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def _gelu(make_model):
    gelu = _node("QuickGelu", ["a"], ["b"], name="gelu", domain="com.microsoft", alpha=1.0)
    return _model(make_model, [gelu], _X.shape)


def test_shapes_behind_an_operator_of_onnx_runtime_are_known(make_model) -> None:
    model = _gelu(make_model)
    found = {
        v.name: v.type for v in with_inferred_shapes(model, session_options(model)).graph.value_info
    }
    assert is_static(found["a"])
    assert is_static(found["b"])


def test_what_follows_such_an_operator_is_compiled(make_model) -> None:
    model = _gelu(make_model)
    imported = import_with_segments(prepare(model, {}).model)
    assert [segment.nodes for segment in imported.segments] == [("gelu",)]
    compiled = tvmopt.compile(model, threads=1)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(compiled(_X)[0], session.run(None, {"x": _X})[0], atol=1e-4)


def test_sizes_that_depend_on_data_stay_unknown(make_model) -> None:
    gelu = _node("QuickGelu", ["a"], ["c"], name="gelu", domain="com.microsoft", alpha=1.0)
    places = _node("NonZero", ["c"], ["d"], name="places")
    model = make_model(
        [_node("Relu", ["x"], ["a"], name="relu"), gelu, places],
        {"x": ("float32", _X.shape)}, {"d": ("int64", (4, None))}, {},
    )  # fmt: skip
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    prepared = prepare(model, {}).model
    assert not is_static(prepared.graph.output[0].type)
