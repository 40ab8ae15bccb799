"""Recurrent layers with int8 weights: exact integer products, and float32 where they do not fit."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnxruntime as ort
import pytest
import tvm
from onnx import numpy_helper

from tests.frontend.recurrent_models import RecurrentModel
from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.stages.check import compile_for_check
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower
from tvmopt.transform.recurrence import quantized

_CASES = {
    "lstm": RecurrentModel("LSTM", 6, 1, 8, 40, ("B",), {}),
    "lstm of rows and both directions": RecurrentModel(
        "LSTM", 5, 5, 3, 21, ("B", "h", "c"), {"direction": "bidirectional"}
    ),
    "gru": RecurrentModel("GRU", 6, 3, 8, 34, ("B", "h"), {"linear_before_reset": 1}),
    "gru that resets first": RecurrentModel(
        "GRU", 6, 2, 8, 34, ("B", "h"), {"linear_before_reset": 0, "direction": "reverse"}
    ),
    "rnn": RecurrentModel("RNN", 6, 2, 5, 17, (), {}),
}


def _module(case: RecurrentModel, **options) -> tvm.IRModule:
    prepared = prepare(case.build()[0], {}).model
    return convert_module(import_onnx(prepared, layer_table(prepared)), **options).mod


def _kernel_dtypes(mod: tvm.IRModule, target: str) -> list[str]:
    """Return the dtypes that the layer's kernel reads."""
    lowered = lower(mod, resolve_target(target, 1).to_tvm())
    [kernel] = [func for var, func in lowered.functions_items() if "_layer" in var.name_hint]
    return [str(param.dtype) for param in kernel.params]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _gates(case: RecurrentModel, pre: list, own: list, c: np.ndarray, h: np.ndarray) -> tuple:
    """Return the new states h and c, given the input's and the state's products by gate."""
    if case.cell == "RNN":
        return np.tanh(pre[0] + own[0]), c
    i, o, f = (_sigmoid(pre[n] + own[n]) for n in (0, 1, 2))
    c = f * c + i * np.tanh(pre[3] + own[3])
    return o * np.tanh(c), c


def _exact(case: RecurrentModel, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return Y (steps, directions, batch, hidden), by integer products of int8 states."""
    model, _ = case.build()
    constants = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    units = case.hidden
    direction = case.attributes.get("direction", "forward")
    directions = constants["W"].shape[0]
    y = np.zeros((case.steps, directions, case.batch, units))
    zeros = np.zeros((directions, case.batch, units), "float32")
    scale = max(1.0, float(np.abs(inputs.get("h", zeros)).max())) / 127
    for d in range(directions):
        w, r = constants["W"][d], constants["R"][d].reshape(-1, units, units)
        count = len(r)
        bias = constants.get("B", np.zeros((directions, 2 * count * units)))[d]
        input_bias, own_bias = bias.reshape(2, count, units)
        weight, weight_scale = quantized(r[None])

        def product(state: np.ndarray, gate: int) -> np.ndarray:
            steps = np.rint(state / scale).astype(int)
            return steps @ weight[0, gate].T.astype(int) * weight_scale[0, gate] * scale  # noqa: B023

        h, c = inputs.get("h", zeros)[d], inputs.get("c", zeros)[d]
        backwards = direction == "reverse" or d == 1
        for at in reversed(range(case.steps)) if backwards else range(case.steps):
            pre = [inputs["X"][at] @ w[n * units : (n + 1) * units].T for n in range(count)]
            pre = [value + input_bias[n] for n, value in enumerate(pre)]
            if case.cell == "GRU":
                z = _sigmoid(pre[0] + product(h, 0) + own_bias[0])
                reset = _sigmoid(pre[1] + product(h, 1) + own_bias[1])
                if case.attributes["linear_before_reset"]:
                    new = np.tanh(pre[2] + reset * (product(h, 2) + own_bias[2]))
                else:
                    new = np.tanh(pre[2] + product(reset * h, 2) + own_bias[2])
                h = (1 - z) * new + z * h
            else:
                own = [product(h, n) + own_bias[n] for n in range(count)]
                h, c = _gates(case, pre, own, c, h)
            y[at, d] = h
    return y


def _multiplies_int8() -> bool:
    return "int8" in _kernel_dtypes(_module(_CASES["rnn"], dtype="int8"), "host")


needs_dot = pytest.mark.skipif(
    not _multiplies_int8(), reason="this CPU has no dot-product instruction for int8"
)


@needs_dot
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", _CASES)
def test_products_are_those_of_integers(name, threads, monkeypatch) -> None:
    monkeypatch.setattr("tvmopt.transform.lower_recurrence._PRODUCTS_PER_THREAD", 1)
    case = _CASES[name]
    mod = _module(case, dtype="int8")
    spec = resolve_target("host", threads)
    _, inputs = case.build()
    got = compile_for_check(mod, spec)(list(inputs.values()))[0]
    np.testing.assert_allclose(got, _exact(case, inputs), atol=2e-5)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("target", "reads_int8"),
    [
        ("cascadelake", True),  # vpdpbusd of 512 bits
        ("alderlake", True),  # of 256 bits
        ("x86-64-v3", False),
        ("neoverse-n1", True),  # sdot
        ("cortex-a53", False),
        ("nvidia-h200", False),
    ],
)
def test_only_cpus_with_a_dot_product_read_int8(target, reads_int8) -> None:
    dtypes = _kernel_dtypes(_module(_CASES["gru"], dtype="int8"), target)
    assert ("int8" in dtypes) is reads_int8
    assert reads_int8 or set(dtypes) == {"float32"}


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("rnn", {"activations": ["Relu"]}),
        ("rnn", {"activations": ["Affine"], "activation_alpha": [0.5]}),
        ("lstm", {"activations": ["Sigmoid", "Tanh", "Relu"]}),
        ("gru", {"activations": ["Tanh", "Tanh"]}),  # 2 n - h is a possible new state
    ],
    ids=str,
)
def test_layers_whose_state_has_no_bound_keep_float32(name, attributes) -> None:
    case = dataclasses.replace(_CASES[name], attributes=attributes)
    assert set(_kernel_dtypes(_module(case, dtype="int8"), "cascadelake")) == {"float32"}


def test_skipped_layers_keep_float32() -> None:
    mod = _module(_CASES["lstm"], dtype="int8", skip_layers=(0,))
    assert set(_kernel_dtypes(mod, "cascadelake")) == {"float32"}


def test_targets_without_the_instruction_multiply_the_rounded_weight() -> None:
    case = _CASES["gru"]
    model, inputs = case.build()
    run = compile_for_check(_module(case, dtype="int8"), resolve_target("x86-64-v3", 1))
    [r] = [one for one in model.graph.initializer if one.name == "R"]
    weight, scale = quantized(numpy_helper.to_array(r).reshape(1, 3, case.hidden, case.hidden))
    rounded = (weight * scale[..., None]).astype("float32").reshape(tuple(r.dims))
    r.CopyFrom(numpy_helper.from_array(rounded, "R"))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, theirs in zip(run(list(inputs.values())), session.run(None, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@needs_dot
def test_a_large_initial_state_has_a_scale_of_its_own() -> None:
    case = _CASES["gru"]
    _, inputs = case.build()
    inputs["h"] = inputs["h"] * 20
    assert np.abs(inputs["h"]).max() > 5
    run = compile_for_check(_module(case, dtype="int8"), resolve_target("host", 1))
    np.testing.assert_allclose(run(list(inputs.values()))[0], _exact(case, inputs), atol=1e-4)
