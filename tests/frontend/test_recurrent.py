"""LSTM, GRU and RNN: results of ONNX Runtime, the matmul as a layer, refusals in one line."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tvm import tirx
from tvm.ir import Expr, TensorLoad
from tvm_ffi import structural_walk

import tvmopt
from tests.frontend.recurrent_models import RecurrentModel, recurrent_models
from tvmopt.device.target import resolve_target
from tvmopt.errors import UnsupportedOperatorError
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.runtime import CompiledModel
from tvmopt.stages.check import compile_for_check
from tvmopt.transform.anchors import anchors
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower


def _imported(model):
    prepared = prepare(model, {}).model
    return import_onnx(prepared, layer_table(prepared))


def _check(case: RecurrentModel, threads: int) -> None:
    model, inputs = case.build()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = session.run(None, inputs)
    run = compile_for_check(_imported(model), resolve_target("host", threads))
    for ours, theirs in zip(run(list(inputs.values())), wanted, strict=True):
        scale = max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5 * scale)


_CASES = {
    "lstm": RecurrentModel("LSTM", 5, 1, 8, 33, ("B",), {}),
    "every input of an lstm": RecurrentModel(
        "LSTM", 5, 5, 3, 16, ("B", "lengths", "h", "c", "P"), {"direction": "bidirectional"}
    ),
    "activations of each direction": RecurrentModel(
        "LSTM", 4, 2, 3, 7, ("B", "lengths"),
        {
            "direction": "bidirectional", "clip": 0.5, "input_forget": 1,
            "activations": ["HardSigmoid", "Softsign", "Elu", "Sigmoid", "Affine", "LeakyRelu"],
            "activation_alpha": [0.3, 0.9, 0.8], "activation_beta": [0.4, 0.1],
        },
    ),
    "gru": RecurrentModel("GRU", 5, 3, 8, 20, ("B", "h"), {"linear_before_reset": 1}),
    "gru that resets first": RecurrentModel(
        "GRU", 5, 9, 8, 20, ("B", "lengths"), {"linear_before_reset": 0, "direction": "reverse"}
    ),
    "rnn": RecurrentModel("RNN", 1, 6, 1, 1, (), {"activations": ["Softplus"]}),
}  # fmt: skip
# Batch 1 and many steps: the kernel multiplies the input as well.
_LONG_CASES = {
    "lstm": RecurrentModel(
        "LSTM", 31, 1, 70, 33, ("B", "h", "c", "P"), {"direction": "bidirectional", "clip": 0.9}
    ),
    "lstm of few features": RecurrentModel("LSTM", 24, 1, 3, 40, ("B",), {"direction": "reverse"}),
    "lstm of many features": RecurrentModel("LSTM", 40, 1, 300, 16, (), {}),
    "gru": RecurrentModel("GRU", 45, 1, 50, 48, ("B", "h"), {"linear_before_reset": 1}),
    "gru that resets first": RecurrentModel(
        "GRU", 37, 1, 61, 20, ("B",), {"linear_before_reset": 0, "direction": "bidirectional"}
    ),
    "rnn": RecurrentModel("RNN", 33, 1, 21, 64, ("B",), {"direction": "reverse"}),
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", _CASES)
def test_results_are_those_of_onnx_runtime(name) -> None:
    _check(_CASES[name], threads=1)


@pytest.mark.sample(3)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", _LONG_CASES)
def test_results_of_long_sequences(name, threads, monkeypatch) -> None:
    monkeypatch.setattr("tvmopt.transform.lower_recurrence._PRODUCTS_PER_THREAD", 1)
    _check(_LONG_CASES[name], threads)


def _takes_products(model, target: str = "nvidia-h200") -> bool:
    """Return whether the layer's kernel takes the products of a matmul over all steps."""
    mod = lower(_imported(model), resolve_target(target, 1).to_tvm())
    [kernel] = [func for var, func in mod.functions_items() if "_layer" in var.name_hint]
    return kernel.params[0].name == "gates"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("changed", "takes_products"),
    [
        ({}, False),
        ({"batch": 2}, True),
        ({"steps": 5}, True),
        ({"operands": ("B", "lengths")}, True),
    ],
    ids=str,
)
def test_batch_one_of_many_steps_needs_no_matmul(changed, takes_products) -> None:
    case = dataclasses.replace(RecurrentModel("LSTM", 40, 1, 8, 16, ("B",), {}), **changed)
    model, _ = case.build()
    assert _takes_products(model, "x86-64-v4") is takes_products
    assert _takes_products(model, "x86-64-v3")
    assert _takes_products(model, "nvidia-h200")


@pytest.mark.sample(2)
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("first", [0, 1])
def test_threads_share_the_steps_of_a_large_layer(cell, first) -> None:
    attributes = {} if cell == "LSTM" else {"linear_before_reset": first}
    _check(RecurrentModel(cell, 7, 2, 8, 200, ("B", "lengths"), attributes), threads=2)


def test_the_steps_are_those_of_the_longest_sequence() -> None:
    model, _ = RecurrentModel("GRU", 9, 2, 4, 8, ("lengths",), {}).build()
    mod = lower(_imported(model), resolve_target("host", 1).to_tvm())
    [kernel] = [func for var, func in mod.functions_items() if "_layer" in var.name_hint]
    extents: list[Expr] = []
    structural_walk(kernel.body, (tirx.For, lambda loop: extents.append(loop.extent)))
    assert any(isinstance(extent, TensorLoad) for extent in extents)


def test_more_threads_than_tiles(monkeypatch) -> None:
    monkeypatch.setattr("tvmopt.transform.lower_recurrence._PRODUCTS_PER_THREAD", 1)
    _check(RecurrentModel("LSTM", 7, 2, 8, 60, ("B",), {}), threads=11)


_UNBOUNDED = {"Affine", "Elu", "LeakyRelu", "Relu", "Softplus", "ThresholdedRelu"}


@pytest.mark.slow
@given(recurrent_models())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_drawn_layers(case) -> None:
    # Activations without a bound overflow over many steps, where ONNX Runtime loses NaN.
    assume(case.steps < 10 or not _UNBOUNDED & {*case.attributes.get("activations", ())})
    _check(case, threads=1)


def test_the_product_of_the_input_is_the_layer() -> None:
    model, _ = RecurrentModel("LSTM", 5, 2, 8, 16, ("B",), {}).build()
    mod = _imported(model)
    assert [(anchor.name, anchor.op) for anchor in anchors(mod)] == [("layer", "matmul")]
    assert [layer.op for layer in layer_table(prepare(model, {}).model)] == ["LSTM"]


def test_a_layer_with_the_batch_first(make_model) -> None:
    """ONNX Runtime refuses ``layout=1``: compared with the same layer, steps first."""
    steps, batch, hidden = 4, 3, 6
    rng = np.random.default_rng(0)
    w = rng.standard_normal((1, 4 * hidden, 5)).astype("float32")
    r = rng.standard_normal((1, 4 * hidden, hidden)).astype("float32")
    x = rng.standard_normal((batch, steps, 5)).astype("float32")
    found = []
    for layout, data in ((1, x), (0, x.transpose(1, 0, 2).copy())):
        y = (batch, steps, 1, hidden) if layout else (steps, 1, batch, hidden)
        h = (batch, 1, hidden) if layout else (1, batch, hidden)
        node = helper.make_node(
            "LSTM", ["x", "W", "R"], ["y", "h"], name="l", hidden_size=hidden, layout=layout
        )
        model = make_model(
            [node],
            {"x": ("float32", data.shape)},
            {"y": ("float32", y), "h": ("float32", h)},
            {"W": w, "R": r},
        )
        found.append(compile_for_check(import_onnx(model), resolve_target("host", 1))([data]))
    (y_batch, h_batch), (y_steps, h_steps) = found
    np.testing.assert_array_equal(y_batch.transpose(1, 2, 0, 3), y_steps)
    np.testing.assert_array_equal(h_batch.transpose(1, 0, 2), h_steps)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"activations": ["Tanh", "Wave"]}, "activation 'Wave' is not one of"),
        ({"activations": ["Tanh"]}, "activations must be 2, but are 1"),
    ],
    ids=str,
)
def test_bad_attributes_are_refused_in_one_line(attributes, said) -> None:
    model, _ = RecurrentModel("GRU", 2, 1, 3, 4, (), attributes).build()
    with pytest.raises(UnsupportedOperatorError, match=said) as caught:
        import_onnx(model)
    assert "\n" not in str(caught.value)


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", ["host", "nvidia-h200"])
@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
@pytest.mark.parametrize("skipped", [(), (0,)])
def test_conversion_narrows_the_recurrent_weight(skipped, narrow, target) -> None:
    model, inputs = RecurrentModel("LSTM", 6, 3, 8, 40, ("B",), {}).build()
    mod = convert_module(_imported(model), dtype=narrow, skip_layers=skipped).mod
    kernels = [
        func
        for var, func in lower(mod, resolve_target(target, 1).to_tvm()).functions_items()
        if var.name_hint.startswith("lstm_layer")
    ]
    kept = "float32" if skipped else narrow
    assert [str(kernel.params[1].dtype) for kernel in kernels] == [kept]
    wanted = ort.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, inputs)
    got = compile_for_check(mod, resolve_target("host", 1))(list(inputs.values()))
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6 if skipped else 2e-2)


def _gru(x: np.ndarray, w: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Compute a GRU of 4 units in float64: hidden states of shape (steps, batch, 4)."""
    hidden, states = np.zeros((x.shape[1], 4)), []
    with np.errstate(over="ignore"):
        for inputs in x.astype("float64"):
            inner, outer = inputs @ w[0].T.astype("float64"), hidden @ r[0].T.astype("float64")
            update, reset = (1 / (1 + np.exp(-(inner + outer)[:, at : at + 4])) for at in (0, 4))
            new = np.tanh(inner[:, 8:] + reset * outer[:, 8:])
            hidden = (1 - update) * new + update * hidden
            states.append(hidden)
    return np.array(states)


def test_gates_are_zero_for_huge_weights() -> None:
    """ONNX Runtime's sigmoid of -1e37 is not 0: its reset gate lets the huge product through."""
    attributes = {"linear_before_reset": 1}
    model, inputs = RecurrentModel("GRU", 2, 3, 6, 4, (), attributes).build()
    [w, r] = model.graph.initializer
    recurrent = np.full((1, 12, 4), -1e38, "float32")
    r.CopyFrom(numpy_helper.from_array(recurrent, r.name))
    exact = _gru(inputs["X"], numpy_helper.to_array(w), recurrent)
    run = compile_for_check(_imported(model), resolve_target("host", 1))
    np.testing.assert_allclose(run([inputs["X"]])[0][:, 0], exact, atol=1e-5)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert np.abs(session.run(None, inputs)[0][:, 0] - exact).max() > 0.1


@pytest.fixture(scope="module")
def with_lengths() -> CompiledModel:
    """A layer of both directions, whose lengths are an input."""
    rng = np.random.default_rng(0)
    node = helper.make_node(
        "GRU", ["x", "w", "r", "", "lengths"], ["y", "h"], hidden_size=4, direction="bidirectional"
    )
    weights = {name: rng.standard_normal((2, 12, 4)).astype("float32") for name in "wr"}
    made = helper.make_tensor_value_info
    kind, length = TensorProto.FLOAT, TensorProto.INT32
    graph = helper.make_graph(
        [node], "lengths", [made("x", kind, [6, 3, 4]), made("lengths", length, [3])],
        [made("y", kind, [6, 2, 3, 4]), made("h", kind, [2, 3, 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    return tvmopt.compile(model, fallback="refuse")


_LENGTHS = st.one_of(st.integers(-2, 9), st.integers(-(2**31), 2**31 - 1))


@given(lengths=st.lists(_LENGTHS, min_size=3, max_size=3))
@settings(max_examples=50, deadline=None)
def test_lengths_count_as_the_nearest_possible_ones(with_lengths, lengths) -> None:
    x = np.arange(72, dtype="float32").reshape(6, 3, 4) / 72
    given, nearest = (np.array(v, "int32") for v in (lengths, np.clip(lengths, 0, 6)))
    found = (with_lengths({"x": x, "lengths": each}) for each in (given, nearest))
    for ours, wanted in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, wanted)
