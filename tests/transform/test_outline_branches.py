"""Branches of If: they hold their own nodes, are fused, and give the results of ONNX Runtime."""

from __future__ import annotations

import itertools

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest
from tvm import relax

import tvmopt
from tvmopt.frontend import import_onnx
from tvmopt.transform.outline_branches import OutlineBranches

# The branches of both conditions use values from outside, and one gives two values.
_MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,3] x, bool c, bool d) => (float[2,3] y, float[2,3] z) {
  a = Exp (x)
  y, z = If (c) <
    then_branch = t () => (float[2,3] p, float[2,3] q) {
      b = Mul (a, x)
      p = If (d) <
        then_branch = tt () => (float[2,3] r) { e = Add (a, b) f = Tanh (e) r = Mul (f, x) },
        else_branch = te () => (float[2,3] s) { s = Neg (b) }>
      q = Abs (p) },
    else_branch = o () => (float[2,3] u, float[2,3] v) { u = Sin (a) w = Add (u, x) v = Cos (w) }>
}"""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(_MODEL)


def test_nodes_of_a_branch_are_imported_into_it(model) -> None:
    main = import_onnx(model)["main"]
    outside = [b.value.op.name for block in main.body.blocks for b in block.bindings
               if isinstance(b.value, relax.Call)]  # fmt: skip
    assert outside == ["relax.exp"]


def test_each_branch_becomes_a_function_and_is_inlined_again(model) -> None:
    mod = import_onnx(model)
    outlined = OutlineBranches()(mod)
    relax.analysis.well_formed(outlined)  # raises otherwise
    names = sorted(var.name_hint for var in outlined.get_global_vars())
    assert [name.rstrip("0123456789") for name in names] == [
        "else_branch", "else_branch", "main", "then_branch", "then_branch",
    ]  # fmt: skip
    inlined = relax.transform.InlinePrivateFunctions()(outlined)
    assert [var.name_hint for var in inlined.get_global_vars()] == ["main"]


def test_results_are_those_of_onnx_runtime(model) -> None:
    compiled = tvmopt.compile(model, threads=1, fallback="refuse")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((2, 3)).astype("float32")
    for c, d in itertools.product((True, False), repeat=2):
        inputs = {"x": x, "c": np.array(c), "d": np.array(d)}
        for ours, theirs in zip(compiled(inputs), session.run(None, inputs), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
