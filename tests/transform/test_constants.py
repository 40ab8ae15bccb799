"""Weights are moved out of a module and back."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

from tvmopt.frontend import import_onnx, prepare
from tvmopt.stages.module_files import PARAMS_FILE, SCRIPT_FILE, read_module, write_module
from tvmopt.transform.constants import bind_constants, split_constants

W = np.arange(20, dtype=np.float32).reshape(4, 5)
X = {"x": ((4, 4), "float32")}


def test_round_trip(relax_main, assert_same):
    mod = relax_main(lambda emit, x: emit(relax.op.matmul(x, relax.const(W))), **X)
    without, params = split_constants(mod)
    assert list(params) == ["p0"]
    np.testing.assert_array_equal(params["p0"].numpy(), W)
    assert_same(bind_constants(without, params), mod)


def test_parameters_follow_the_inputs(relax_main, assert_same):
    mod = relax_main(lambda emit, x: emit(relax.op.matmul(x, relax.const(W))), **X)
    without, _ = split_constants(mod)
    expected = relax_main(
        lambda emit, x, p0: emit(relax.op.matmul(x, p0)), **X, p0=((4, 5), "float32")
    )
    expected["main"] = expected["main"].with_attr("num_input", 1)
    assert_same(without, expected)


def test_a_shared_constant_stays_one_parameter(relax_main, assert_same):
    shared = relax.const(W)

    def body(emit, x):
        matmul = emit(relax.op.matmul(x, shared))
        return emit(relax.op.add(matmul, shared))

    mod = relax_main(body, **X)
    without, params = split_constants(mod)
    assert list(params) == ["p0"]
    assert len(without["main"].params) == 2
    assert_same(bind_constants(without, params), mod)


@pytest.mark.parametrize(("elements", "names"), [(16, []), (17, ["p0"])])
def test_small_constants_stay(relax_main, elements, names):
    mod = relax_main(
        lambda emit, x: emit(relax.op.add(x, relax.const(np.ones(elements, np.float32)))),
        x=((elements,), "float32"),
    )
    without, params = split_constants(mod)
    assert list(params) == names
    if not names:
        tvm.ir.assert_structural_equal(without, mod)


def test_different_constants_are_different_parameters(relax_main):
    def body(emit, x):
        return emit(relax.op.matmul(emit(relax.op.matmul(x, relax.const(W))), relax.const(W.T)))

    _, params = split_constants(relax_main(body, **X))
    assert [tuple(tensor.shape) for tensor in params.values()] == [(4, 5), (5, 4)]


def test_argument_keeps_its_constants(relax_main):
    mod = relax_main(lambda emit, x: emit(relax.op.matmul(x, relax.const(W))), **X)
    before = tvm.ir.save_json(mod)
    split_constants(mod)
    assert tvm.ir.save_json(mod) == before


@pytest.fixture
def branching(make_model):
    """Import an ``If`` with a different weight in each branch."""
    import onnx

    def branch(name):
        return helper.make_graph(
            [helper.make_node("MatMul", ["x", f"w_{name}"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 5])],
        )

    model = make_model(
        [helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))],
        {"c": ("bool", []), "x": ("float32", [2, 4])},
        {"y": ("float32", [2, 5])},
        {"w_a": W, "w_b": -W},
    )
    return import_onnx(prepare(model, {}).model)


def test_weights_in_branches(branching, assert_same):
    without, params = split_constants(branching)
    assert len(params) == 2
    assert_same(bind_constants(without, params), branching)


def test_files_round_trip(conv_model, tmp_path, assert_same):
    mod = import_onnx(prepare(conv_model, {}).model)
    size = write_module(tmp_path, mod)
    assert (tmp_path / PARAMS_FILE).stat().st_size == size >= 4 * (8 * 27 + 8 * 5)
    assert "def main(" in (tmp_path / SCRIPT_FILE).read_text()
    assert_same(read_module(tmp_path), mod)
