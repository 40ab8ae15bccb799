"""Integer layers that are fitted to the float model: weights, biases, and where they are used."""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tvmopt.errors import ConfigError
from tvmopt.frontend import prepare
from tvmopt.frontend.reference import Reference
from tvmopt.quantize import (
    HeldBack,
    Quantizer,
    Ranges,
    Scheme,
    collect_ranges,
    correct,
    layer_walk,
    with_channel_scales,
)
from tvmopt.quantize import correct as correct_function
from tvmopt.quantize.correct import output_error
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.layerwise import fit_layers, spread_batches
from tvmopt.quantize.probe import Setting
from tvmopt.quantize.rounding import Rounding, patches_of, rounded

CORRECT = sys.modules[correct_function.__module__]


@pytest.fixture(scope="module")
def network(make_model):
    """Return a network with residual addition, depthwise convolution and Gemm, and samples."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w1", "b1"], ["d"], "depthwise", group=16),
        helper.make_node("Conv", ["d", "w2", "b2"], ["e"], "pointwise"),
        helper.make_node("Conv", ["e", "w3", "b3"], ["f"], "third", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["e", "f"], ["s"], "sum"),
        helper.make_node("GlobalAveragePool", ["s"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["q"], "flatten"),
        helper.make_node("Gemm", ["q", "w4", "b4"], ["y"], "last", transB=1),
    ]
    second = rng.uniform(0.0015, 0.0035, (16, 1, 3, 3)).astype(np.float32)
    second[:, 0, 1, 1] = 1.0  # the others round to 0: a shift of the mean
    constants = {
        "w0": normal(16, 3, 3, 3), "w1": second, "w2": normal(32, 16, 1, 1),
        "w3": normal(32, 32, 3, 3), "w4": normal(10, 32),
        **{f"b{at}": rng.uniform(0.2, 1.0, n).astype(np.float32)
           for at, n in enumerate((16, 16, 32, 32, 10))},
    }  # fmt: skip
    inputs, outputs = {"x": ("float32", (1, 3, 12, 12))}, {"y": ("float32", (1, 10))}
    model = prepare(make_model(nodes, inputs, outputs, constants), {}).model
    draws = [{"x": rng.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(28)]
    return model, draws[:20], draws[20:]


@pytest.fixture(scope="module")
def fitted(network):
    model, batches, _ = network
    ranges = collect_ranges(model, batches)
    return ranges, fit_layers(model, ranges, batches)


def test_the_error_falls_on_other_samples(network, fitted):
    model, _, others = network
    before, after = (output_error(model, ranges, others) for ranges in fitted)
    assert after < before / 4
    assert set(fitted[1].biases) == {"first", "depthwise", "pointwise", "third", "last"}
    assert set(fitted[1].roundings) == set(fitted[1].biases)


def test_weights_of_a_large_layer_round_to_nearest(network, fitted, monkeypatch):
    model, batches, others = network
    monkeypatch.setattr(layer_walk, "_MOST_INPUTS", 100)
    done = fit_layers(model, fitted[0], batches)
    assert set(done.roundings) == {"first", "depthwise", "pointwise", "last"}, "third has 288"
    assert set(done.biases) == set(fitted[1].biases)
    assert output_error(model, done, others) < output_error(model, fitted[0], others) / 4


def test_equal_data_gives_equal_bytes(network, fitted):
    model, batches, _ = network
    before = model.SerializeToString()
    again = fit_layers(model, fitted[0], batches)
    assert json.dumps(again.to_dict()) == json.dumps(fitted[1].to_dict())
    assert Ranges.from_dict(json.loads(json.dumps(again.to_dict()))) == again
    assert model.SerializeToString() == before


@pytest.mark.parametrize("skipped", ["first", "third", "last"])
def test_a_skipped_layer_keeps_its_weights_and_bias(network, fitted, skipped):
    model, _, _ = network
    quantised = Quantizer(model, fitted[1], Scheme())([skipped])
    found, before = Graph(quantised.graph), Graph(model.graph)
    nodes = [next(n for n in one.nodes if n.name == skipped) for one in (found, before)]
    for got, want in zip(*(node.input[1:] for node in nodes), strict=True):
        assert found.array(got).tobytes() == before.array(want).tobytes()


def test_a_single_layer_is_probed_with_its_weights(network, fitted):
    model, _, _ = network
    setting = Setting(model, Graph(model.graph), Scheme(), fitted[1])
    quantised = Graph(Quantizer(model, fitted[1], Scheme())().graph)
    for node in setting.graph.nodes:
        if node.name in fitted[1].roundings:
            read = next(n for n in quantised.nodes if n.name == node.name).input[1]
            codes, scale = map(quantised.array, quantised.producer[read].input[:2])
            wanted = codes.astype(np.float32) * scale.reshape(-1, *[1] * (codes.ndim - 1))
            probed = setting.weights(node, "int8")[node.input[1]]
            np.testing.assert_allclose(probed, wanted, rtol=1e-5, atol=1e-7)


def test_roundings_of_another_model(network, fitted):
    model, _, _ = network
    ranges, done = fitted
    for name, rounding in (("relu", done.roundings["first"]), ("first", done.roundings["last"])):
        wrong = dataclasses.replace(ranges, roundings={name: rounding})
        with pytest.raises(ConfigError, match=r"roundings must belong to the model .* again"):
            Quantizer(model, wrong, Scheme())


def test_auto_fits_on_a_part_and_measures_the_float_model_once(network, monkeypatch):
    model, batches, _ = network
    floats, seen = [], []

    def session(model):
        found = new_session(model)
        ops = {node.op_type for node in model.graph.node}
        if "QuantizeLinear" not in ops:
            floats.append(model)
        return found

    def fit(model, ranges, batches, scheme, deadline):
        seen.append(len(batches))
        return fit_layers(model, ranges, batches, scheme, deadline)

    monkeypatch.setattr(CORRECT, "new_session", session)
    monkeypatch.setattr(CORRECT, "fit_layers", fit)
    measured = []
    error = HeldBack.error
    quantize = CORRECT.quantize_model

    def quantized(model, ranges, scheme):
        measured.append(ranges)
        return quantize(model, ranges, scheme)

    monkeypatch.setattr(CORRECT, "quantize_model", quantized)
    ranges, held_back = collect_ranges(model, batches), HeldBack(model, batches)
    scaled, line = with_channel_scales(model, ranges, batches, held_back)
    done = correct(model, scaled, batches, "auto", held_back=held_back)
    assert line and done.quantizer == "layerwise" and seen == [15]
    assert len(floats) == 1
    kinds = line.count("convolutions")
    assert len(measured) == 2 + kinds, "plain, with scales of each kind, fitted: each once"
    assert done.line.startswith("weights of 5 layers and biases of 5 fitted to the float model: ")
    assert error(held_back, done.ranges) < error(held_back, ranges)


def test_auto_drops_a_fit_that_does_not_help(network, monkeypatch):
    model, batches, _ = network
    ranges = collect_ranges(model, batches)
    worse = dataclasses.replace(ranges, biases={"first": (9.0,) * 16})
    monkeypatch.setattr(CORRECT, "fit_layers", lambda *_, **__: worse)
    done = correct(model, ranges, batches, "auto")
    assert (done.ranges, done.quantizer) == (ranges, "onnxruntime")
    assert done.line.startswith("layers as they are: fitting changes the typical error of the ")


@pytest.mark.parametrize(
    ("rare", "quantizer"), [(0.05, "layerwise"), (0.1, "onnxruntime")], ids=["rare", "far off"]
)
def test_the_typical_error_decides_on_a_fit(network, monkeypatch, rare, quantizer):
    """Of 16 samples 13 have two fifths of the error, and 3 more: a mean of 0.0126 or 0.0220."""
    model, batches, _ = network
    ranges = collect_ranges(model, batches)
    fitted = dataclasses.replace(ranges, biases={"first": (0.0,) * 16})
    errors = {id(ranges): np.full(16, 0.01), id(fitted): np.array([0.004] * 13 + [rare] * 3)}
    monkeypatch.setattr(CORRECT, "fit_layers", lambda *_, **__: fitted)
    monkeypatch.setattr(CORRECT, "_narrowed", lambda *_: ranges)
    monkeypatch.setattr(HeldBack, "_errors", lambda self, ranges: errors[id(ranges)])
    done = correct(model, ranges, batches, "auto")
    assert done.quantizer == quantizer
    assert "the typical error of the outputs from 1.00% to" in done.line


def test_errors_of_correlated_inputs_cancel():
    rng = np.random.default_rng(0)
    factors = rng.standard_normal((4, 24))
    patches = rng.standard_normal((2, 500, 4)) @ factors + 0.1 * rng.standard_normal((2, 500, 24))
    steps = rng.uniform(-120, 120, (2, 5, 24)).astype(np.float32)
    found = rounded(steps, patches.astype(np.float32))
    assert found.dtype == np.int8 and np.abs(found.astype(int)).max() <= 127

    def error(codes):
        changes = patches @ (codes - steps).transpose(0, 2, 1)
        return (changes - changes.mean(axis=1, keepdims=True)).var()

    assert error(found) < error(np.rint(steps)) / 4


def test_uncorrelated_inputs_round_to_nearest():
    patches = np.concatenate([np.eye(8), -np.eye(8)])[None].astype(np.float32)
    steps = np.random.default_rng(1).uniform(-127, 127, (1, 3, 8)).astype(np.float32)
    np.testing.assert_array_equal(rounded(steps, patches), np.rint(steps))


def test_inputs_that_never_change_are_no_fault():
    patches = np.ones((2, 10, 3), np.float32)
    patches[0, :, 0] = np.arange(10)
    steps = np.full((2, 2, 3), 0.4, np.float32)
    assert np.abs(rounded(steps, patches)).max() <= 1


@settings(max_examples=40, deadline=None)
@given(
    groups=st.sampled_from([1, 2, 4]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
)
def test_dot_products_of_patches_are_the_convolution(groups, kernel, strides, dilations, pads):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4, 7, 8)).astype(np.float32)
    w = rng.standard_normal((8, 4 // groups, *kernel)).astype(np.float32)
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], group=groups, strides=strides, dilations=dilations, pads=pads
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g",
        [value("x", 1, x.shape), value("w", 1, w.shape)], [value("y", 1, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    [want] = Reference(model)({"x": x, "w": w})
    found = patches_of(node, x, w.shape, 10**6, rng)
    got = found @ w.reshape(groups, 8 // groups, -1).transpose(0, 2, 1)  # (groups, at, outputs)
    got = got.transpose(1, 0, 2).reshape(2, *want.shape[2:], 8).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    few = patches_of(node, x, w.shape, 3, rng)
    assert few.shape == (groups, min(3, found.shape[1]), found.shape[2])


def test_no_patches_of_other_layers():
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"])
    x = np.zeros((1, 2, 3, 3), np.float32)
    assert patches_of(node, x, (2, 2, 1, 1), 5, np.random.default_rng(0)) is None
    same = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER")
    assert patches_of(same, x, (2, 2, 1, 1), 5, np.random.default_rng(0)) is None


@given(st.integers(0, 2**32 - 1))
def test_a_rounding_restores_its_weights(seed):
    rng = np.random.default_rng(seed)
    nearest = rng.integers(-127, 128, (3, 4)).astype(np.int8)
    codes = np.clip(nearest + rng.integers(-3, 4, (3, 4)), -127, 127).astype(np.int8)
    packed = Rounding.of(codes, nearest)
    assert Rounding.from_dict(json.loads(json.dumps(packed.to_dict()))) == packed
    np.testing.assert_array_equal(packed.codes(nearest), codes)


def test_onnx_is_what_runs(network, fitted):
    """The artifact holds plain Q and DQ nodes."""
    quantised = Quantizer(network[0], fitted[1], Scheme())()
    onnx.checker.check_model(quantised)


@pytest.mark.parametrize(("side", "count"), [(8, 32), (448, 8), (300, 17)])
def test_fewer_large_inputs_are_fitted(make_model, side, count):
    tensor = ("float32", (1, 3, side, side))
    model = make_model(
        [helper.make_node("Relu", ["x"], ["y"], "relu")], {"x": tensor}, {"y": tensor}
    )
    model = prepare(model, {}).model
    batches = [{"x": np.broadcast_to(np.float32(at), tensor[1])} for at in range(64)]
    found = spread_batches(model, batches)
    assert len(found) == count
    assert found[0] is batches[0] and found[-1] is batches[-1]
    held_back = HeldBack(model, batches)
    assert len(held_back.judged) == min(16, count) and len(held_back.unseen) == 16
