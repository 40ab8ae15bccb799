"""Layers of the recurrent benchmarks: models that ONNX Runtime runs, and the rows of a GPU."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from benchmarks import cuda_recurrent
from benchmarks.recurrent_layers import STEPS, Layer, layers, model


@pytest.mark.parametrize("layer", layers((8,), batch=2), ids=lambda layer: layer.name)
def test_a_layer_runs_in_onnx_runtime(layer: Layer) -> None:
    session = ort.InferenceSession(
        model(layer).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    [y] = session.run(None, {"x": layer.input()})
    assert y.shape == (STEPS, 1, 2, 8)
    assert np.isfinite(y).all()


def test_an_rnn_is_computed_with_its_weights() -> None:
    layer = Layer("RNN", "RNN", 8)
    x, (w, r, b) = layer.input(), layer.weights().values()
    session = ort.InferenceSession(
        model(layer).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    first = np.tanh(x[0] @ w[0].T + b[0, :8] + b[0, 8:])
    second = np.tanh(x[1] @ w[0].T + first @ r[0].T + b[0, :8] + b[0, 8:])
    np.testing.assert_allclose(session.run(None, {"x": x})[0][1, 0], second, atol=1e-5)


def test_each_row_of_a_gpu_has_a_library_of_its_own() -> None:
    files = [case.file for case in cuda_recurrent.cases()]
    assert len(set(files)) == len(files)
