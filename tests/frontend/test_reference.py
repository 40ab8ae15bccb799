"""The float reference: random inputs, and comparing outputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tvmopt.errors import AccuracyError, ModelError
from tvmopt.frontend.reference import (
    Reference,
    check_outputs,
    random_inputs,
    working_random_inputs,
)


@pytest.fixture
def identity(make_model):
    """A model with one input of the dtype given, passed through."""

    def make(dtype, shape=(200,)):
        return make_model(
            [helper.make_node("Identity", ["x"], ["y"])],
            {"x": (dtype, list(shape))},
            {"y": (dtype, list(shape))},
        )

    return make


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_are_normal(identity, dtype):
    x = random_inputs(identity(dtype), seed=0)["x"]
    assert (x.dtype, x.shape) == (np.dtype(dtype), (200,))
    assert abs(float(x.mean())) < 0.3
    assert 0.8 < float(x.std()) < 1.2


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
def test_integers_are_0_or_1(identity, dtype):
    x = random_inputs(identity(dtype), seed=0)["x"]
    assert x.dtype == np.dtype(dtype)
    assert set(x.astype(int)) == {0, 1}


def test_scalars(identity):
    assert random_inputs(identity("float32", ()), seed=0)["x"].shape == ()
    assert random_inputs(identity("int64", ()), seed=0)["x"].shape == ()


def test_seed_decides(identity):
    model = identity("float32")
    same = [random_inputs(model, seed)["x"] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(same[0], same[1])
    assert not np.array_equal(same[0], same[2])


def test_strings_and_complex_are_refused(make_model):
    for kind in (onnx.TensorProto.STRING, onnx.TensorProto.COMPLEX64):
        value = helper.make_tensor_value_info("x", kind, [2])
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value], [])
        with pytest.raises(ModelError, match="must be numeric tensors, but 'x' holds"):
            random_inputs(helper.make_model(graph), seed=0)


def test_outputs_come_in_the_order_of_the_graph(two_input_model):
    reference = Reference(two_input_model)
    inputs = random_inputs(two_input_model, seed=0)
    assert reference.output_names == ["y", "out/sum"]
    assert [o.shape for o in reference(inputs)] == [(4, 3), (4, 8)]


def test_random_inputs_that_the_reference_cannot_take(make_model):
    model = make_model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        {"x": ("float32", [6]), "shape": ("int64", [2])},
        {"y": ("float32", None)},
    )
    with pytest.raises(ModelError, match="must run on random inputs.*give real inputs with data="):
        working_random_inputs(Reference(model), model, seed=0)


def test_check_gives_the_largest_deviation():
    want = [np.array([1.0, 10.0]), np.array([1.0])]
    got = [np.array([1.0, 10.001]), np.array([1.0005])]
    assert check_outputs(got, want, ["a", "b"], "it") == pytest.approx(5e-4)


@pytest.mark.parametrize(
    ("got", "message"),
    [
        ([np.zeros(2)], r"it must give 2 output\(s\), but gave 1"),
        ([np.zeros(2), np.zeros((1, 1))], r"output 'b' of shape \(1,\), but gave \(1, 1\)"),
        ([np.zeros(2), np.array([0.01])], r"within 0\.001 .* output 'b' deviates by 0\.01"),
        ([np.array([0, np.nan]), np.zeros(1)], r"output 'a' deviates by inf"),
    ],
)
def test_check_refuses(got, message):
    with pytest.raises(AccuracyError, match=message):
        check_outputs(got, [np.zeros(2), np.zeros(1)], ["a", "b"], "it")
