"""Models with nodes that cannot be compiled: segments for ONNX Runtime, and the results."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import tvmopt
from tvmopt.errors import UnsupportedOperatorError
from tvmopt.frontend import import_onnx, import_with_segments, prepare
from tvmopt.frontend.partition import OPERATOR, partition, used_values
from tvmopt.frontend.support import unknown_operators
from tvmopt.transform.count_segments import count_segments

_X = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype("float32")

# u has as many values as the largest one of x says.
_DYNAMIC = """
  a = Relu (x) s = ReduceMax <keepdims: int = 0> (a) t = Cast <to: int = 7> (s)
  last, u = Loop (t, , s) <body = b (int64 i, bool on, float p) => (bool stays, float q, float o) {
    stays = Identity (on) q = Add (p, p) o = Neg (q) }>
"""
# Det, and a Loop whose length depends on data, have no converter.
_MODELS = {
    "one in the middle": (
        """g (float[2,3,4,4] x) => (float[N,M] y)
        { a = Relu (x) d = Det (a) y = Neg (d) }""",
        1,
    ),
    "two with compiled nodes between them": (
        """g (float[2,3,4,4] x) => (float[N,M] y, float[P,Q] z)
        { a = Relu (x) d = Det (a) s = Unsqueeze (d, ax) b = Mul (a, s) e = Det (b)
          y = Add (d, e) z = Exp (e) }""",
        2,
    ),
    "two beside each other are one": (
        """g (float[2,3,4,4] x) => (float[N,M] y)
        { a = Relu (x) b = Neg (x) d = Det (a) e = Det (b) y = Add (d, e) }""",
        1,
    ),
    "all of it": ("g (float[2,3,4,4] x) => (float[N,M] y) { y = Det (x) }", 1),
    "a shape known at run time only": (
        "g (float[2,3,4,4] x) => (float[N] y, float[2,3,4,4] z) {"
        + _DYNAMIC
        + "y = Exp (u) z = Tanh (a) }",
        1,
    ),
    "a dynamic shape that becomes static": (
        "g (float[2,3,4,4] x) => (float y) {"
        + _DYNAMIC
        + "n = ReduceSum <keepdims: int = 0> (u) y = Tanh (n) }",
        1,
    ),
    "in a branch": (
        """g (float[2,3,4,4] x, bool c) => (float[N,M] y)
        { a = Relu (x)
          d = If (c) <then_branch = yes () => (float[2,3] p) { p = Det (a) },
                      else_branch = no () => (float[2,3] q) { q = ReduceMax <axes: ints = [2, 3],
                      keepdims: int = 0> (a) }>
          y = Neg (d) }""",
        1,
    ),
}


def _model(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')
    axes = onnx.numpy_helper.from_array(np.array([2, 3], "int64"), "ax")
    model.graph.initializer.extend([axes] if "ax" in text.split("<")[0] else [])
    return model


def _inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {v.name: _X if v.name == "x" else np.array(True) for v in model.graph.input}


@pytest.mark.parametrize("name", _MODELS)
def test_results_and_number_of_segments(name, tmp_path) -> None:
    text, segments = _MODELS[name]
    model = _model(text)
    inputs = _inputs(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, inputs)
    compiled = tvmopt.compile(model, threads=1, output=tmp_path / "out")
    for run in (compiled, tvmopt.load(tmp_path / "out")):
        assert run.metadata.segments == segments
        for got, expected in zip(run(inputs), wanted, strict=True):
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_segment_names_its_nodes_and_the_reasons() -> None:
    model = prepare(_model(_MODELS["two beside each other are one"][0]), {}).model
    imported = import_with_segments(model)
    [segment] = imported.segments
    assert segment.nodes == ("d", "e")
    assert segment.line == (
        "2 node(s) run in ONNX Runtime: d (Det: no converter), e (Det: no converter)"
    )
    assert count_segments(imported.mod) == 1


def test_no_value_passes_backwards() -> None:
    """Every input of a node of the parted model is made before it."""
    for text, _ in _MODELS.values():
        model = prepare(_model(text), {}).model
        parted, _ = partition(model, unknown_operators(model))
        known = {v.name for v in (*parted.graph.input, *parted.graph.initializer)}
        for node in parted.graph.node:
            assert used_values(node) <= known
            known.update(node.output)
        assert OPERATOR in {node.op_type for node in parted.graph.node}


def test_a_model_without_such_nodes_has_no_segment() -> None:
    model = prepare(_model("g (float[2,3,4,4] x) => (float[2,3,4,4] y) { y = Relu (x) }"), {}).model
    imported = import_with_segments(model)
    assert (imported.segments, count_segments(imported.mod)) == ((), 0)


def test_refused_where_the_user_asks_so() -> None:
    with pytest.raises(UnsupportedOperatorError, match="Det x1 at"):
        tvmopt.compile(_model(_MODELS["all of it"][0]), threads=1, fallback="refuse")


def test_a_segment_that_cannot_be_made_hides_no_operator_that_has_no_converter() -> None:
    model = _model(_MODELS["one in the middle"][0])
    for at, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{at}"
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_with_segments(model)  # not prepared: no value inside has a type
    first, second = str(caught.value).split("; tried next: 1 node(s) in ONNX Runtime, but ")
    assert "Det x1 at Det_1 (no converter)" in first
    assert second.startswith("values between compiled nodes and ONNX Runtime must have a known")


def test_the_first_failure_of_the_importer_is_named(monkeypatch) -> None:
    model = _model("g (float[2,3,4,4] x) => (float[2,3,4,4] y) { y = Relu (x) }")
    failures = iter([ValueError("the first"), KeyError("the second")])

    def fail(*_args: object) -> None:
        raise next(failures, ValueError("the last"))

    monkeypatch.setattr("tvmopt.frontend.importer._import_some_opset", fail)
    with pytest.raises(UnsupportedOperatorError, match=r"the first.* in ONNX Runtime, but .*last"):
        import_with_segments(prepare(model, {}).model)


@pytest.mark.parametrize("fault", [MemoryError, NameError, ImportError])
def test_a_fault_of_the_program_or_machine_is_no_unsupported_operator(monkeypatch, fault) -> None:
    def fail(*_args: object) -> None:
        raise fault("broken")

    monkeypatch.setattr("tvmopt.frontend.importer.quiet_from_onnx", fail)
    model = prepare(_model("g (float[2,3,4,4] x) => (float[2,3,4,4] y) { y = Relu (x) }"), {}).model
    with pytest.raises(fault, match="broken"):
        import_with_segments(model)
    with pytest.raises(fault, match="broken"):
        import_onnx(model)
