"""Tests of the float reference: random inputs and comparison of outputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tvmopt.compare import FLOAT_TOLERANCE, HALF_TOLERANCE, QUANTISED_TOLERANCE
from tvmopt.errors import AccuracyError, ModelError
from tvmopt.frontend.reference import (
    Reference,
    check_outputs,
    input_specs,
    tolerance_for,
    working_random_inputs,
)
from tvmopt.random_inputs import random_arrays
from tvmopt.runtime.metadata import TensorSpec


def test_inputs_are_described(two_input_model, make_model):
    assert input_specs(two_input_model) == (
        TensorSpec("ids", (4,), "int64"),
        TensorSpec("in/bias", (4, 8), "float32"),
    )
    scalar = make_model(
        [helper.make_node("Not", ["x"], ["y"])], {"x": ("bool", [])}, {"y": ("bool", [])}
    )
    assert input_specs(scalar) == (TensorSpec("x", (), "bool"),)


@pytest.mark.parametrize("kind", [onnx.TensorProto.STRING, onnx.TensorProto.COMPLEX64])
def test_strings_and_complex_are_refused(kind):
    value = helper.make_tensor_value_info("x", kind, [2])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value], [])
    with pytest.raises(ModelError, match="must be numeric tensors, but 'x' holds"):
        input_specs(helper.make_model(graph))


def test_outputs_come_in_the_order_of_the_graph(two_input_model):
    reference = Reference(two_input_model)
    inputs = random_arrays(input_specs(two_input_model), 0, "normal")
    assert reference.output_names == ["y", "out/sum"]
    assert [o.shape for o in reference(inputs)] == [(4, 3), (4, 8)]


def test_floats_that_are_ids_get_0_and_1(make_model):
    model = make_model(
        [
            helper.make_node("Cast", ["x"], ["i"], to=onnx.TensorProto.INT64),
            helper.make_node("Gather", ["table", "i"], ["y"]),
        ],
        {"x": ("float32", [1000])},
        {"y": ("float32", [1000])},
        {"table": np.array([3.0, 4.0], np.float32)},
    )
    kind, inputs, outputs = working_random_inputs(Reference(model), input_specs(model), seed=0)
    assert kind == "binary"
    assert set(inputs["x"]) == {0.0, 1.0}
    assert set(outputs[0]) == {3.0, 4.0}


def test_normal_numbers_come_first(two_input_model):
    specs = input_specs(two_input_model)
    kind, inputs, outputs = working_random_inputs(Reference(two_input_model), specs, seed=0)
    assert kind == "normal"
    assert len(np.unique(inputs["in/bias"])) > 2
    np.testing.assert_array_equal(outputs[1], Reference(two_input_model)(inputs)[1])


def test_random_inputs_that_the_reference_cannot_take(make_model):
    model = make_model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        {"x": ("float32", [6]), "shape": ("int64", [2])},
        {"y": ("float32", None)},
    )
    with pytest.raises(
        ModelError, match=r"must run on random inputs.*give real inputs with data="
    ) as caught:
        working_random_inputs(Reference(model), input_specs(model), seed=0)
    assert "\n" not in str(caught.value)


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


@pytest.mark.parametrize(
    ("dtype", "op", "tolerance"),
    [
        ("float32", "Relu", FLOAT_TOLERANCE),
        ("float16", "Relu", HALF_TOLERANCE),
        ("float32", "QuantizeLinear", QUANTISED_TOLERANCE),
    ],
)
def test_tolerance_follows_the_number_formats(make_model, dtype, op, tolerance):
    constants = {"scale": np.array(0.1, dtype), "zero": np.array(0, np.uint8)}
    names = ["x", "scale", "zero"] if op == "QuantizeLinear" else ["x"]
    out = "uint8" if op == "QuantizeLinear" else dtype
    node = helper.make_node(op, names, ["y"], name="node")
    model = make_model([node], {"x": (dtype, [2])}, {"y": (out, [2])}, constants)
    assert tolerance_for(model) == tolerance


def test_a_model_that_sorts_may_swap_its_rows(make_model):
    """Scores that are nearly equal, with the boxes and labels that belong to them."""
    node = helper.make_node("TopK", ["x", "k"], ["v", "i"], name="top")
    model = make_model(
        [node], {"x": ("float32", [4])}, {"v": ("float32", [3]), "i": ("int64", [3])},
        {"k": np.int64([3])},
    )  # fmt: skip
    tolerance = tolerance_for(model)
    expected = [np.float32([0.9, 0.80000001, 0.8]), np.int64([2, 0, 3])]
    swapped = [np.float32([0.9, 0.8, 0.8]), np.int64([2, 3, 0])]
    assert check_outputs(swapped, expected, ["v", "i"], "it", tolerance) < 1e-6
    with pytest.raises(AccuracyError, match="output 'i' deviates"):
        check_outputs(swapped, expected, ["v", "i"], "it", FLOAT_TOLERANCE)
    with pytest.raises(AccuracyError, match="output 'i' deviates"):
        check_outputs([swapped[0], np.int64([3, 3, 0])], expected, ["v", "i"], "it", tolerance)


def test_what_onnx_runtime_refuses_is_one_line(make_model):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="twice"),
        helper.make_node("Relu", ["a"], ["y"], name="twice"),
    ]
    model = make_model(nodes, {"x": ("float32", [2])}, {"y": ("float32", [2])})
    with pytest.raises(ModelError, match=r"ONNX Runtime must load .*\(twice\)") as caught:
        Reference(model)
    assert "\n" not in str(caught.value)
