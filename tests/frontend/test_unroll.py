"""Loop and Scan with a constant number of iterations: unrolled, with the results as before."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, prepare
from tvmopt.frontend.unroll import MOST_NODES, unroll
from tvmopt.stages.check import compile_for_check

_X = np.arange(12, dtype="float32").reshape(3, 4) / 7 - 0.6


def _model(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>\n{text}')


_LOOP = """
sums (float[3,4] x) => (float[N,M] y, float[T,N,M] z) <int64 trips = {4}, bool on = {1}>
{
  y, z = Loop (trips, on, x) <body = body
    (int64 i, bool before, float[3,4] a) => (bool after, float[3,4] b, float[3,4] c) {
      after = Identity (before)
      step = Cast <to: int = 1> (i)
      b = Add (a, step)
      c = Mul (b, x)
    }>
}
"""
_NESTED = """
nested (float[3,4] x) => (float[N,M] y) <int64 trips = {2}, int64 inner_trips = {3}>
{
  y = Loop (trips, , x) <body = outer
    (int64 i, bool before, float[3,4] a) => (bool after, float[3,4] b) {
      after = Constant <value: tensor = bool {1}> ()
      b = Loop (inner_trips, , a) <body = inner
        (int64 j, bool go, float[3,4] c) => (bool on, float[3,4] d) {
          on = Identity (go)
          n = Add (i, j)
          f = Cast <to: int = 1> (n)
          e = Sub (c, f)
          d = Tanh (e)
        }>
    }>
}
"""
_BRANCH = """
branch (float[3,4] x) => (float[N,M] y) <int64 trips = {3}>
{
  y = Loop (trips, , x) <body = body
    (int64 i, bool before, float[3,4] a) => (bool after, float[3,4] b) {
      after = Identity (before)
      one = Constant <value: tensor = int64 {1}> ()
      second = Equal (i, one)
      b = If (second) <
        then_branch = yes () => (float[3,4] p) { p = Mul (a, x) },
        else_branch = no () => (float[3,4] q) { q = Sub (a, x) }>
    }>
}
"""
_SCAN = """
scan (float[4] s, float[3,4] x) => (float[N] last, float[P,Q] all)
{
  last, all = Scan <num_scan_inputs: int = 1, scan_input_directions: ints = [DIRECTION],
    scan_output_directions: ints = [DIRECTION], scan_output_axes: ints = [AXIS],
    body = body (float[4] before, float[4] row) => (float[4] after, float[4] out) {
      both = Add (before, row)
      after = Relu (both)
      out = Neg (both)
    }> (s, x)
}
"""


def _run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def _unrolled(model: onnx.ModelProto) -> onnx.ModelProto:
    typed = onnx.shape_inference.infer_shapes(model)
    assert unroll(typed)
    onnx.checker.check_model(typed)
    return typed


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("text", [_LOOP, _NESTED, _BRANCH], ids=["loop", "nested", "branch"])
def test_an_unrolled_loop_gives_the_same(text, opset) -> None:
    model = _model(text, opset)
    unrolled = _unrolled(model)
    assert "Loop" not in {node.op_type for node in unrolled.graph.node}
    for got, wanted in zip(_run(unrolled, {"x": _X}), _run(model, {"x": _X}), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("direction", ["0", "1"], ids=["forward", "backward"])
@pytest.mark.parametrize("axis", ["0", "1"])
def test_an_unrolled_scan_gives_the_same(direction, axis) -> None:
    model = _model(_SCAN.replace("DIRECTION", direction).replace("AXIS", axis))
    inputs = {"s": np.float32([1, -1, 2, 0]), "x": _X}
    unrolled = _unrolled(model)
    for got, wanted in zip(_run(unrolled, inputs), _run(model, inputs), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_an_unrolled_loop_compiles() -> None:
    model = _model(_LOOP)
    run = compile_for_check(import_onnx(prepare(model, {}).model), resolve_target("host", 1))
    for got, wanted in zip(run([_X]), _run(model, {"x": _X}), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


_LEFT = {
    "a condition of the data": _LOOP.replace(
        "after = Identity (before)",
        "s = ReduceSum <keepdims: int = 0> (a) zero = Constant <value: tensor = float {0}> () "
        "after = Greater (s, zero)",
    ),
    "a count of the data": _LOOP.replace("int64 trips = {4}, ", "").replace(
        "(float[3,4] x)", "(float[3,4] x, int64 trips)"
    ),
    "too many nodes": _LOOP.replace("trips = {4}", f"trips = {{{MOST_NODES}}}"),
    "no iteration": _LOOP.replace("trips = {4}", "trips = {0}"),
    "off at once": _LOOP.replace("on = {1}", "on = {0}"),
}


@pytest.mark.parametrize("name", _LEFT)
def test_what_is_left_alone(name) -> None:
    model = onnx.shape_inference.infer_shapes(_model(_LEFT[name]))
    before = model.SerializeToString()
    assert not unroll(model)
    assert model.SerializeToString() == before


def test_a_loop_whose_results_nobody_takes_is_left_alone() -> None:
    model = _model(_LOOP)
    loop = next(node for node in model.graph.node if node.op_type == "Loop")
    loop.name = ""
    del loop.output[:]
    assert not unroll(model)
