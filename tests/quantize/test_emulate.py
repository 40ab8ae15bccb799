"""The emulation of a converted layer equals the conversion of that layer."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import helper

from tvmopt.frontend import layer_table
from tvmopt.frontend.reference import Reference
from tvmopt.quantize import Quantizer, Scheme, collect_ranges
from tvmopt.quantize.downstream import Downstream, Recording
from tvmopt.quantize.emulate import cast_layers, quantised_activation, quantised_weight, round_to
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.probe import Probe, Setting, noise_ratio
from tvmopt.transform.precision.rounding import round_keeping_sums

FLOATS = arrays(np.float32, 16, elements=st.floats(-1000, 1000, width=32))


@settings(max_examples=20, deadline=None)
@given(value=FLOATS, types=st.sampled_from(["u8s8", "s8s8"]), symmetric=st.booleans())
def test_activations_round_as_in_onnx_runtime(make_model, value, types, symmetric):
    scheme = Scheme(types, symmetric=symmetric)
    low, high = float(value.min()), float(value.max())
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "m")],
        {"x": ("float32", (1, 16))},
        {"y": ("float32", (1, 1))},
        {"w": np.ones((16, 1), np.float32)},
    )
    ranges = collect_ranges(model, [{"x": value[None]}], scheme)
    quantised = Quantizer(model, ranges, scheme)()
    graph = Graph(quantised.graph)
    pair = graph.producer[next(n for n in graph.nodes if n.name == "m").input[0]]
    quantised.graph.output.extend([onnx.ValueInfoProto(name=pair.output[0])])
    want = Reference(quantised)({"x": value[None]})[1][0]
    got = quantised_activation(value, low, high, scheme)
    step = (high - low) / 255 or 1.0
    np.testing.assert_allclose(got, want, atol=1e-4 * step)


@settings(max_examples=50, deadline=None)
@given(value=FLOATS)
def test_rounding_to_sixteen_bits(value):
    np.testing.assert_array_equal(round_to(value, "float16"), np.float32(np.float16(value)))
    bits = value.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32) << 16
    np.testing.assert_array_equal(round_to(value, "bfloat16"), bits.view(np.float32))


def test_weights_keep_their_largest_value_a_channel():
    weight = np.array([[1.0, -2.0, 0.5], [100.0, 3.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
    rounded = quantised_weight(weight, 0)
    assert np.abs(rounded).max(axis=1) == pytest.approx([2, 100, 0])
    assert np.abs(rounded - weight).max() < 0.4
    assert np.abs(quantised_weight(weight, None) - weight)[0].max() > 0.2


@pytest.fixture(scope="module")
def setting(network, batches):
    scheme = Scheme()
    graph = Graph(network.model.graph)
    return Setting(network.model, graph, scheme, collect_ranges(network.model, batches, scheme))


@pytest.mark.parametrize("dtype", ["int8", "float16", "bfloat16"])
def test_a_probed_layer_equals_the_converted_layer(network, batches, setting, dtype):
    """A probe of one layer and its successors equals the whole model with that layer converted."""
    graph = setting.graph
    layers = layer_table(network.model)
    quantizer = Quantizer(network.model, setting.ranges, setting.scheme)
    for layer in layers:
        node = next(n for n in graph.nodes if n.name == layer.name)
        after = Downstream(graph, node.output[0])
        names = {*after.inputs, *node.input}
        recording = Recording(network.model, names, batches, 2**30)
        probe = Probe(setting, node, after, recording.values[0])
        if dtype == "int8":
            whole = quantizer([other.name for other in layers if other != layer])
        else:
            whole = cast_layers(network.model, dtype, [layer.name])
        run, exact = Reference(whole), Reference(network.model)
        for values, inputs in zip(recording.values, batches, strict=True):
            got, [want], [plain] = probe(values, dtype)["y"], run(inputs), exact(inputs)
            scale = np.abs(plain).max()
            np.testing.assert_allclose(got, want, atol=2e-5 * scale, err_msg=layer.name)
            assert np.abs(got - plain).max() > 1e-5 * scale or dtype != "int8", layer.name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_casting_rounds_what_layers_read(network, batches, dtype):
    model = cast_layers(network.model, dtype, ["fc"])
    onnx.checker.check_model(model, full_check=True)
    graph = Graph(network.model.graph)
    node = next(n for n in network.model.graph.node if n.name == "fc")
    inner = Recording(network.model, [node.input[0]], batches, 2**30).values[0][node.input[0]]
    flat, weight = (round_to(x, dtype) for x in (inner, graph.array(node.input[1])))
    want = flat @ weight.T + graph.array(node.input[2])
    got = Reference(model)(batches[0])[0]
    np.testing.assert_array_equal(got, round_to(got, dtype))
    np.testing.assert_allclose(got, want, rtol=2**-8, atol=1e-6)


def test_casting_rounds_kernels_as_conversion_does(network):
    model = cast_layers(network.model, "bfloat16", [n.name for n in network.model.graph.node])
    before, after = Graph(network.model.graph), Graph(model.graph)
    kernels = 0
    for node in after.nodes:
        if node.op_type == "Conv" and after.array(node.input[1])[0, 0].size > 1:
            exact = before.array(node.input[1].removesuffix(".as_bfloat16"))
            want = round_keeping_sums(exact, "bfloat16").astype(np.float32)
            np.testing.assert_array_equal(after.array(node.input[1]), want)
            kernels += 1
    assert kernels


def test_only_successors_of_the_layer_are_run(network, batches):
    graph = Graph(network.model.graph)
    after = Downstream(graph, "r")
    names = [n.name for n in after.nodes]
    assert names == ["cat", "pool", "gated", "gate", "swish", "deep", "average", "flat", "fc"]
    assert after.inputs == ["a", "r"]
    recording = Recording(network.model, after.inputs, batches, 2**30)
    run = after.compile(network.model, graph, recording.values[0])
    values = recording.values[0]
    np.testing.assert_allclose(run(values["r"], values)["y"], values["y"], rtol=1e-5, atol=1e-6)


def test_recording_is_bounded(network, batches):
    assert len(Recording(network.model, ["a"], batches, 1).values) == 1
    every = Recording(network.model, ["a"], batches, 2**30)
    assert len(every.values) == len(batches) and not every.is_out_of_time
    one = Recording(network.model, ["a"], batches, 2**30, until=0.0)
    assert len(one.values) == 1 and one.is_out_of_time


@pytest.mark.parametrize(
    ("actual", "expected", "ratio"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([0.0, 2.0], [1.0, 2.0], 0.2),
        ([np.inf, 2.0], [1.0, 2.0], np.inf),
        ([np.nan, 2.0], [1.0, 2.0], np.inf),
        ([5.0, 3.0], [np.inf, 2.0], 0.25),  # a non-finite result gives no measure
        ([1.0], [0.0], 1.0),
    ],
)
def test_noise_ratio(actual, expected, ratio):
    found = noise_ratio(np.array(actual, np.float32), np.array(expected, np.float32))
    assert found == pytest.approx(ratio)


def test_noise_of_whole_numbers_is_the_share_that_differs():
    assert noise_ratio(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])) == 0.25
