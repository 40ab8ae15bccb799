"""Tests of benchmark rows extracted from ONNX models: shapes, padding, unsupported nodes."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from benchmarks.model_operators import model_operators
from benchmarks.operators import Convolution, MatMul

from .folded import graph

small = st.integers(1, 3)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.booleans())
def test_convolution_of_a_node_has_onnx_shapes(data, transposed):
    pair = st.tuples(small, small)
    kernel, strides = data.draw(pair), data.draw(pair)
    groups, dilations = (1, (1, 1)) if transposed else (data.draw(small), data.draw(pair))
    pads = data.draw(st.tuples(*[st.integers(0, 2)] * 4))
    size = data.draw(st.tuples(st.integers(5, 12), st.integers(5, 12)))
    channels, filters = 2 * groups, 3 * groups
    weight = (channels, filters // groups) if transposed else (filters, channels // groups)
    node = helper.make_node(
        "ConvTranspose" if transposed else "Conv", ["x", "w"], ["y"], strides=strides, pads=pads,
        dilations=dilations, group=groups, kernel_shape=kernel,
    )  # fmt: skip
    wanted = Convolution(
        channels, filters, size, kernel, strides, pads, dilations, groups, transposed, 2
    )
    assume(min(wanted.out_size) > 0)
    inputs = {"x": (2, channels, *size)}
    model = graph([node], inputs, ["y"], {"w": (*weight, *kernel)})
    [(_, found)], left = model_operators(model)
    assert found == wanted and not left
    dims = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    assert dims == [2, filters, *found.out_size]


@pytest.mark.parametrize(
    ("auto_pad", "pads"), [("SAME_UPPER", (0, 0, 1, 1)), ("SAME_LOWER", (1, 1, 0, 0))]
)
def test_auto_pad_is_resolved(auto_pad, pads):
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=(2, 2), auto_pad=auto_pad)
    model = graph([node], {"x": (1, 3, 8, 8)}, ["y"], {"w": (4, 3, 3, 3)})
    [(_, found)], _ = model_operators(model)
    assert found.pads == pads
    assert found.out_size == (4, 4)


def test_a_convolution_over_a_line_is_one_over_an_image():
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=(2, 1), strides=(3,))
    model = graph([node], {"x": (1, 3, 20)}, ["y"], {"w": (4, 3, 5)})
    [(_, found)], _ = model_operators(model)
    assert found == Convolution(3, 4, (1, 20), (1, 5), (1, 3), (0, 2, 0, 1))
    assert found.out_size == (1, 7)
    assert found.flops == 2 * 7 * 5 * 3 * 4


def test_matrix_products_of_a_model():
    nodes = [
        helper.make_node("Gemm", ["a", "w", "c"], ["g"], transB=1),
        helper.make_node("MatMul", ["h", "v"], ["m"]),
        helper.make_node("MatMul", ["h", "k"], ["n"]),
        helper.make_node("MatMul", ["h", "v"], ["again"]),
    ]
    inputs = {"a": (4, 8), "h": (2, 3, 5, 7), "k": (2, 3, 7, 6)}
    weights = {"w": (10, 8), "c": (10,), "v": (7, 9)}
    rows, left = model_operators(graph(nodes, inputs, ["g", "m", "n", "again"], weights))
    assert [op for _, op in rows] == [
        MatMul(4, 8, 10, bias=True),
        MatMul(30, 7, 9),
        MatMul(5, 7, 6, batch=6, constant=False),
    ]
    assert not left


def test_unsupported_nodes_are_reported():
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], name="deep"),
        helper.make_node("ConvTranspose", ["a", "v"], ["b"], name="up", group=2),
    ]
    inputs = {"x": (1, 2, 5, 5, 5), "a": (1, 4, 6, 6)}
    weights = {"w": (3, 2, 1, 1, 1), "v": (4, 1, 2, 2)}
    rows, left = model_operators(graph(nodes, inputs, ["y", "b"], weights))
    assert not rows
    assert left[0] == "Conv deep: not supported, it has 3 spatial axes"
    assert "no groups" in left[1]
