"""Segments that ONNX Runtime runs inside native libraries."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import tvmopt
from tvmopt.errors import ConfigError
from tvmopt.runtime import load

_TWO = """
<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
two (float[4,8] x) => (float[4,8] z)
{
  a = Tanh (x)
  b = com.microsoft.QuickGelu <alpha: float = 1.0> (a)
  c = Exp (b)
  d = com.microsoft.QuickGelu <alpha: float = 1.5> (c)
  z = Add (d, x)
}
"""
# The segment reads an input of the network and a constant, and writes two outputs of it.
_ENDS = """
<ir_version: 8, opset_import: ["": 17]>
ends (float[2,3] x, int64 axis) => (float[2,3] y, float[2,3] z, bool[2,3] large)
<float[2,3] one = {1,1,1,1,1,1}>
{
  y = CumSum (x, axis)
  z = CumSum (one, axis)
  large = Greater (y, z)
}
"""
X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Return a compiled model with two segments, its folder and its outputs in ONNX Runtime."""
    model, folder = onnx.parser.parse_model(_TWO), tmp_path_factory.mktemp("two") / "bundle"
    compiled = tvmopt.compile(model, threads=2, output=folder)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return compiled, folder, session.run(None, {"x": X})[0]


def test_a_library_with_segments_is_native(two) -> None:
    compiled, folder, wanted = two
    assert compiled.metadata.native
    assert compiled.metadata.segments == 2
    for model in (compiled, load(folder)):
        np.testing.assert_allclose(model(X)[0], wanted, rtol=1e-6, atol=1e-6)


def test_many_threads_call_at_once(two) -> None:
    compiled, _, _ = two
    inputs = [X * scale for scale in np.linspace(0.5, 2, 200, dtype=np.float32)]
    alone = [compiled(x)[0] for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for got, expected in zip(pool.map(lambda x: compiled(x)[0], inputs), alone, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_more_bound_calls_than_bindings_are_kept(two) -> None:
    compiled, _, _ = two
    calls = [compiled.bind() for _ in range(70)]
    for _ in range(2):
        for number, call in enumerate(calls):
            call.inputs["x"][...] = X + number
            np.testing.assert_array_equal(call()[0], compiled(X + np.float32(number))[0])


def test_a_segment_reads_inputs_and_writes_outputs_of_the_network() -> None:
    model = onnx.parser.parse_model(_ENDS)
    compiled = tvmopt.compile(model, threads=1)
    assert compiled.metadata.native
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for axis in (0, 1, -1):
        feed = {"x": X[:2, :3], "axis": np.array(axis)}
        for got, expected in zip(compiled(feed), session.run(None, feed), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_a_refusal_names_no_other_call() -> None:
    compiled = tvmopt.compile(onnx.parser.parse_model(_ENDS), threads=1)
    right, wrong = ({"x": X[:2, :3], "axis": np.array(axis)} for axis in (1, 7))
    expected = compiled(right)[0]
    with pytest.raises(ConfigError, match="ONNX Runtime, which runs a part of the model"):
        compiled(wrong)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(compiled, feed) for feed in [right, wrong] * 20]
        for number, call in enumerate(calls):
            if number % 2:
                assert isinstance(call.exception(), ConfigError)
            else:
                np.testing.assert_array_equal(call.result()[0], expected)


def test_the_library_alone_says_what_it_needs(two) -> None:
    _, folder, _ = two
    library = ctypes.CDLL(str(folder / "model.so"))
    library.tvmopt_error.restype = ctypes.c_char_p
    memory = [np.zeros(4 * 8 * 4 + 64, np.uint8) for _ in range(2)]
    starts = [each.ctypes.data + -each.ctypes.data % 64 for each in memory]
    assert library.tvmopt_run((ctypes.c_void_p * 2)(*starts)) != 0
    assert b"ONNX Runtime must run some nodes" in library.tvmopt_error()


def test_it_is_no_operator_of_onnx_runtime(two) -> None:
    _, folder, _ = two
    options = onnxruntime.SessionOptions()
    with pytest.raises(Exception, match="needs ONNX Runtime for some nodes"):
        options.register_custom_ops_library(str(folder / "model.so"))
