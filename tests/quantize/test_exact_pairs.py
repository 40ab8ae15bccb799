"""Quantization ``u8s8-pairs``: pairs of products within int16, for little accuracy."""

from __future__ import annotations

import hypothesis
import numpy as np
import onnx
import pytest
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tvmopt.frontend import prepare
from tvmopt.kernels.exact_pairs import is_exact
from tvmopt.quantize import Quantizer, Scheme, collect_ranges
from tvmopt.quantize.exact_pairs import k_axis, pair_factors, partners, within_pairs
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.layerwise import fit_layers
from tvmopt.quantize.select import ANCHORS

PAIRS = Scheme("u8s8-pairs")


@pytest.fixture(name="model")
def _model(make_model) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], "conv"),
        helper.make_node("ConvTranspose", ["a", "w1"], ["t"], "transposed"),
        helper.make_node("Flatten", ["t"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "w2"], ["m"], "matmul"),
        helper.make_node("Gemm", ["m", "w3", "b3"], ["g"], "turned", transB=1),
        helper.make_node("Gemm", ["g", "w4", "b4"], ["y"], "last"),
    ]
    shapes = {
        "w0": (4, 3, 3, 3), "b0": (4,), "w1": (4, 2, 2, 2), "w2": (98, 5),
        "w3": (6, 5), "b3": (6,), "w4": (6, 3), "b4": (3,),
    }  # fmt: skip
    constants = {k: rng.uniform(-1, 1, s).astype(np.float32) for k, s in shapes.items()}
    inputs, outputs = {"x": ("float32", (1, 3, 8, 8))}, {"y": ("float32", (1, 3))}
    return prepare(make_model(nodes, inputs, outputs, constants), {}).model


@pytest.fixture(name="batches")
def _batches() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(6)]


def exact_layers(model: onnx.ModelProto) -> dict[str, bool]:
    """Return whether the int8 weight of each layer has exact pairs, by name."""
    graph = Graph(model.graph)
    found = {}
    for node in graph.nodes:
        if node.op_type in ANCHORS:
            codes = graph.array(graph.producer[node.input[1]].input[0])
            assert codes.dtype == np.int8
            found[node.name] = is_exact(np.moveaxis(codes, k_axis(node), -1))
    return found


def test_no_pair_of_any_layer_saturates(model, batches) -> None:
    ranges = collect_ranges(model, batches)
    plain = exact_layers(Quantizer(model, ranges, Scheme())())
    pairs = exact_layers(Quantizer(model, ranges, PAIRS)())
    assert not any(plain.values())
    assert set(pairs) == set(plain)
    assert all(pairs.values())


def test_fitted_weights_keep_it(model, batches) -> None:
    ranges = fit_layers(model, collect_ranges(model, batches), batches, PAIRS)
    assert ranges.roundings
    assert all(exact_layers(Quantizer(model, ranges, PAIRS)()).values())


def test_biases_follow_the_scales(model, batches) -> None:
    quantised = Quantizer(model, collect_ranges(model, batches), PAIRS)()
    graph = Graph(quantised.graph)
    [node] = [node for node in graph.nodes if node.name == "conv"]
    x, weight, bias = (graph.producer[name] for name in node.input)
    product = graph.array(x.input[1]) * graph.array(weight.input[1])
    np.testing.assert_allclose(graph.array(bias.input[1]), product, rtol=1e-6)
    constants = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    restored = graph.array(bias.input[0]) * product
    np.testing.assert_allclose(restored, constants[node.name and "b0"], atol=product.max())


def test_only_channels_whose_pairs_saturate_get_a_larger_scale() -> None:
    steps = np.array([[127.0, 1, -127, 127], [127, 127, 0, 0], [-100, -92, 0, 0]])
    np.testing.assert_allclose(pair_factors(steps, 0, 1), [1, 254 / 128, 1.5])
    np.testing.assert_allclose(pair_factors(steps.T, 1, 0), [1, 254 / 128, 1.5])


@hypothesis.given(seed=st.integers(0, 2**32 - 1), inputs=st.integers(1, 7))
def test_rounding_lifts_no_pair_above_the_limit(seed: int, inputs: int) -> None:
    codes = np.random.default_rng(seed).integers(-127, 128, (3, inputs, 2)).astype(np.int8)
    fitting = within_pairs(codes, 1)
    assert is_exact(np.moveaxis(fitting, 1, -1))
    sums = np.abs(codes.astype(int) - fitting)
    was_exact = [is_exact(row.T) for row in codes]
    assert all((change == 0).all() for change, exact in zip(sums, was_exact, strict=True) if exact)


def test_partners_are_neighbouring_channels_of_one_tap() -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["y"])
    found = partners(conv, (8, 3, 1, 2))
    np.testing.assert_array_equal(found, [2, 3, 0, 1, -1, -1])
    np.testing.assert_array_equal(partners(helper.make_node("MatMul", "xw", "y"), (4, 9)),
                                  [1, 0, 3, 2])  # fmt: skip
