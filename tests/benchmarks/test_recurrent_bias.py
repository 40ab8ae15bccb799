"""Recurrent layers without their bias: the same numbers, and NaN stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from benchmarks.recurrent_bias import without_bias


@pytest.mark.parametrize(
    ("cell", "gates", "attributes"),
    [("LSTM", 4, {}), ("GRU", 3, {}), ("LSTM", 4, {"direction": "bidirectional"})],
)
def test_the_same_layer_without_a_bias(make_model, cell, gates, attributes):
    rng = np.random.default_rng(0)
    directions = 2 if attributes else 1
    weights = {
        name: rng.standard_normal((directions, *shape)).astype(np.float32)
        for name, shape in (("w", (3 * gates, 5)), ("r", (3 * gates, 3)), ("b", (6 * gates,)))
    }
    node = onnx.helper.make_node(cell, ["x", "w", "r", "b"], ["y"], hidden_size=3, **attributes)
    outputs = {"y": ("float32", [4, directions, 1, 3])}
    model = make_model([node], {"x": ("float32", [4, 1, 5])}, outputs, weights)
    before, after = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
        for m in (model, without_bias(model))
    )
    x = rng.standard_normal((4, 1, 5)).astype(np.float32)
    want = before.run(None, {"x": x})[0]
    np.testing.assert_allclose(after.run(None, {"x": x})[0], want, atol=1e-5)
    x[2] = np.nan
    assert np.isnan(after.run(None, {"x": x})[0][2:, 0]).all()
    assert not np.isnan(before.run(None, {"x": x})[0]).any()
