"""A value of a call that becomes a shape is ONNX Runtime's to check."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import tvmopt
from tvmopt.errors import ConfigError, UnsupportedOperatorError

_TILE = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,3] x, int64[2] n) => (float[4,9] y) { y = Tile (x, n) }"""  # declared, as if static
_STFT = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,32,1] x, int64 s) => (float[1,N,M,2] y) { y = STFT (x, s, w) }"""


@pytest.fixture(scope="module")
def tiled():
    return tvmopt.compile(onnx.parser.parse_model(_TILE), threads=1)


def test_repeats_of_a_call_run_in_onnx_runtime(tiled) -> None:
    assert tiled.metadata.segments == 1
    x = np.arange(6, dtype="float32").reshape(2, 3)
    [y] = tiled({"x": x, "n": np.array([2, 3])})
    np.testing.assert_array_equal(y, np.tile(x, (2, 3)))


@pytest.mark.parametrize("repeats", [(-1, 1), (2**61, 1), (2**59, 2**3), (2**62, 2**62)])
def test_repeats_that_overflow_are_refused_in_one_line(tiled, repeats) -> None:
    with pytest.raises(ConfigError, match="inputs must be such that ONNX Runtime") as caught:
        tiled({"x": np.ones((2, 3), "float32"), "n": np.array(repeats)})
    assert "\n" not in str(caught.value)


def test_without_onnx_runtime_the_model_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="must not be a value of a call, but 1 is"):
        tvmopt.compile(onnx.parser.parse_model(_TILE), threads=1, fallback="refuse")


def test_a_step_that_may_be_zero_is_refused() -> None:
    """ONNX Runtime divides by it, and the process ends."""
    model = onnx.parser.parse_model(_STFT)
    window = onnx.numpy_helper.from_array(np.ones(8, "float32"), "w")
    model.graph.initializer.append(window)
    with pytest.raises(UnsupportedOperatorError, match="frame_step of STFT must be constant"):
        tvmopt.compile(model, threads=1)
