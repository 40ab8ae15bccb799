"""A native model as an operator of ONNX Runtime."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.threads import in_threads
from tvmopt.runtime import load
from tvmopt.runtime.metadata import LIBRARY_FILE
from tvmopt.runtime.model import read_golden
from tvmopt.tracking.registry.operator_model import OPERATOR_FILE, write_operator_model


def _session(bundle: Path, folder: Path, model: onnx.ModelProto | None = None):
    """Return a session of the bundle's operator model, or of another one with that operator."""
    copy = Path(shutil.copytree(bundle, folder))
    write_operator_model(copy, load(copy).metadata)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(copy / LIBRARY_FILE))
    source = str(copy / OPERATOR_FILE) if model is None else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", ["conv_bundle", "two_input_bundle"])
def test_it_gives_the_golden_outputs(name, request, tmp_path) -> None:
    bundle = request.getfixturevalue(name)
    model, session = load(bundle), _session(bundle, tmp_path / "bundle")
    inputs, expected = read_golden(bundle, model.metadata)
    assert [output.name for output in session.get_outputs()] == [
        spec.name for spec in model.metadata.outputs
    ]
    for got, want in zip(session.run(None, inputs), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_arrays_at_any_place(conv_bundle, tmp_path) -> None:
    model, session = load(conv_bundle), _session(conv_bundle, tmp_path / "bundle")
    memory = np.random.default_rng(0).standard_normal(3 * 8 * 8 + 16).astype(np.float32)
    for shift in range(16):
        x = memory[shift : shift + 3 * 8 * 8].reshape(1, 3, 8, 8)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], model(x)[0])


def test_several_threads(conv_bundle, tmp_path) -> None:
    session = _session(conv_bundle, tmp_path / "bundle")
    x = np.random.default_rng(0).standard_normal((8, 1, 3, 8, 8)).astype(np.float32)
    want = [session.run(None, {"x": one})[0] for one in x]
    wrong = []

    def run(seed: int) -> None:
        for _ in range(30):
            if not np.array_equal(session.run(None, {"x": x[seed]})[0], want[seed]):
                wrong.append(seed)

    in_threads(run)
    assert wrong == []


def test_a_node_among_others_checks_its_input(conv_bundle, tmp_path) -> None:
    """Shapes that ONNX Runtime does not know before the run are checked by the operator."""
    nodes = [
        helper.make_node("Relu", ["a"], ["x"]),
        helper.make_node("CompiledModel", ["x"], ["y"], domain="tvmopt"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["n", 3, 8, "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("tvmopt", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = _session(conv_bundle, tmp_path / "bundle", model)
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    [got] = session.run(None, {"a": x})
    np.testing.assert_allclose(got, load(conv_bundle)(np.maximum(x, 0))[0], rtol=1e-5, atol=1e-5)
    for shape in ((2, 3, 8, 8), (1, 3, 8, 7)):
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument) as caught:
            session.run(None, {"a": np.zeros(shape, np.float32)})
        assert "input 0 must have the shape that the model was compiled for" in str(caught.value)


def test_it_computes_each_size(sizes_bundle, tmp_path) -> None:
    session, held = _session(sizes_bundle, tmp_path / "bundle"), load(sizes_bundle).metadata.sizes
    assert [size.inputs[0] for size in held] == [(2, 16), (2, 8), (1, 16), (1, 8)]
    assert not any(isinstance(extent, int) for extent in session.get_inputs()[0].shape)
    for size in (*held, *reversed(held)):
        x = np.random.default_rng(0).standard_normal(size.inputs[0]).astype(np.float32)
        [y] = session.run(None, {"x": x})
        np.testing.assert_allclose(y, np.exp(x) + 0.5, rtol=1e-5)
    for shape in ((2, 7), (3, 16)):
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument) as caught:
            session.run(None, {"x": np.zeros(shape, np.float32)})
        assert "was compiled for (128 bytes; 3 more sizes)" in str(caught.value)


def test_two_models_in_one_process(conv_bundle, two_input_bundle, tmp_path) -> None:
    sessions = [
        (_session(bundle, tmp_path / str(i)), bundle)
        for i, bundle in enumerate((conv_bundle, two_input_bundle))
    ]
    for session, bundle in sessions:
        inputs, expected = read_golden(bundle, load(bundle).metadata)
        np.testing.assert_allclose(session.run(None, inputs)[0], expected[0], rtol=1e-4, atol=1e-4)
