"""Tests of the layer table against hand-computed shapes and FLOPs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tvmopt.frontend.layers import layer_table
from tvmopt.frontend.prepare import prepare


def _ones(*shape):
    return np.ones(shape, np.float32)


@pytest.fixture
def layer(make_model):
    """Return the only layer of a model with one node, its inputs and its weight."""

    def find(op, inputs, out, weight=None, **attributes):
        names = [*inputs, *(["w"] if weight is not None else [])]
        model = make_model(
            [helper.make_node(op, names, ["y"], name="layer", **attributes)],
            {name: ("float32", shape) for name, shape in inputs.items()},
            {"y": ("float32", out)},
            None if weight is None else {"w": weight},
        )
        [found] = layer_table(prepare(model, {}).model)
        return found

    return find


def test_convolution(layer):
    found = layer("Conv", {"x": [1, 3, 10, 10]}, [1, 8, 4, 4], _ones(8, 3, 3, 3), strides=[2, 2])
    # 8 x 4 x 4 outputs with 3 x 3 x 3 multiply-adds each
    assert found.flops == 2 * (8 * 4 * 4) * (3 * 3 * 3)
    assert (found.op, found.name, found.index) == ("Conv", "layer", 0)
    assert (found.shape, found.weight) == ("1x8x4x4", "8x3x3x3")
    assert (found.layout, found.dtype, found.skipped) == ("NCHW", "float32", False)


def test_grouped_convolution(layer):
    found = layer("Conv", {"x": [2, 8, 5, 5]}, [2, 8, 5, 5], _ones(8, 2, 1, 1), group=4)
    assert found.flops == 2 * (2 * 8 * 5 * 5) * 2


def test_depthwise_convolution_of_one_dimension(layer):
    found = layer("Conv", {"x": [1, 6, 9]}, [1, 6, 7], _ones(6, 1, 3), group=6)
    assert found.flops == 2 * (6 * 7) * 3
    assert found.layout == "NCW"


def test_transposed_convolution(layer):
    found = layer(
        "ConvTranspose", {"x": [1, 4, 3, 3]}, [1, 2, 7, 7], _ones(4, 2, 3, 3), strides=[2, 2]
    )
    # each of the 4 x 3 x 3 inputs is multiplied by a 2 x 3 x 3 kernel
    assert found.flops == 2 * (4 * 3 * 3) * (2 * 3 * 3)


def test_matmul_with_a_weight(layer):
    found = layer("MatMul", {"x": [5, 7]}, [5, 11], _ones(7, 11))
    assert found.flops == 2 * 5 * 11 * 7
    assert found.layout == ""


def test_batched_matmul_of_two_activations(layer):
    found = layer("MatMul", {"a": [2, 3, 5, 7], "b": [2, 3, 7, 4]}, [2, 3, 5, 4])
    assert found.flops == 2 * (2 * 3 * 5 * 4) * 7
    assert found.weight == ""


@pytest.mark.parametrize(("trans_a", "shape"), [(0, [4, 6]), (1, [6, 4])])
def test_gemm(layer, trans_a, shape):
    found = layer("Gemm", {"a": shape}, [4, 9], _ones(6, 9), transA=trans_a)
    assert found.flops == 2 * 4 * 9 * 6


def test_gemm_with_a_transposed_weight(layer):
    found = layer("Gemm", {"a": [4, 6]}, [4, 9], _ones(9, 6), transB=1)
    assert found.flops == 2 * 4 * 9 * 6
    assert found.weight == "9x6"


def test_unknown_shape_gives_no_number(make_model):
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        {"x": ("float32", None)},
        {"y": ("float32", None)},
        {"w": _ones(3, 3)},
    )
    [found] = layer_table(model)
    assert found.flops is None
    assert found.shape == ""
    assert found.name == "h"


def test_order_and_numbering_follow_the_graph(conv_model):
    layers = layer_table(prepare(conv_model, {}).model)
    assert [(item.index, item.name, item.op) for item in layers] == [
        (0, "conv", "Conv"),
        (1, "dense", "Gemm"),
    ]
    assert sum(item.flops for item in layers) == 2 * 8 * 64 * 27 + 2 * 5 * 8


def test_layers_in_branches_of_an_if_count_where_the_if_stands(make_model):
    def branch(name):
        return helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], [name], name=f"in_{name}")],
            name,
            [],
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3])],
        )

    branches = {"then_branch": branch("yes"), "else_branch": branch("no")}
    model = make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="before"),
            helper.make_node("If", ["c"], ["i"], **branches),
            helper.make_node("MatMul", ["h", "w"], ["y"], name="after"),
        ],
        {"c": ("bool", []), "x": ("float32", [2, 3])},
        {"y": ("float32", [2, 3])},
        {"w": _ones(3, 3)},
    )
    layers = layer_table(prepare(model, {}).model)
    names = [item.name for item in layers]
    assert (names[0], {*names[1:3]}, names[3]) == ("before", {"in_yes", "in_no"}, "after")
    assert [item.index for item in layers] == [0, 1, 2, 3]
    assert [item.flops for item in layers] == [2 * 2 * 3 * 3] * 4


def test_linear_models_and_support_vector_machines(make_model):
    vectors = {"support_vectors": [1.0] * 20, "n_supports": 4, "kernel_type": "RBF"}
    nodes = [
        helper.make_node(
            "LinearClassifier", ["x"], ["label", "scores"], "linear", domain="ai.onnx.ml",
            coefficients=[1.0] * 15, intercepts=[0.0] * 3, classlabels_ints=[0, 1, 2],
        ),
        helper.make_node(
            "SVMRegressor", ["x"], ["y"], "svm", domain="ai.onnx.ml", coefficients=[1.0] * 4,
            rho=[0.0], kernel_params=[1.0, 0.0, 3.0], **vectors,
        ),
    ]  # fmt: skip
    model = make_model(
        nodes,
        {"x": ("float32", [7, 5])},
        {"label": ("int64", [7]), "scores": ("float32", [7, 3]), "y": ("float32", [7, 1])},
    )
    linear, svm = layer_table(model)
    assert (linear.name, linear.shape, linear.weight) == ("linear", "7x3", "3x5")
    assert linear.flops == 2 * 7 * 3 * 5
    assert linear.bytes == 4 * (7 * 5 + 3 * 5 + 7 * 3)
    assert (linear.dtype, linear.index, svm.index) == ("float32", 0, 1)
    # 4 vectors of 5 features, then 4 coefficients
    assert (svm.shape, svm.weight, svm.flops) == ("7x1", "4x5", 2 * 7 * (4 * 5 + 4))
