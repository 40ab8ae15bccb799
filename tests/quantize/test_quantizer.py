"""Tests of the ONNX quantizer: integer layers, scales, skipped layers, rejected models."""

import logging

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError, ModelError
from tvmopt.frontend import layer_table, prepare
from tvmopt.frontend.reference import Reference
from tvmopt.quantize import (
    Quantizer,
    Ranges,
    Scheme,
    collect_ranges,
    is_quantized,
    quantize_model,
    scheme_for,
)
from tvmopt.quantize.graph import Graph

ANCHORS = ["stem", "left", "right", "gated", "deep", "fc"]


@pytest.fixture(scope="module")
def ranges(network, batches):
    return collect_ranges(network.model, batches, Scheme(integer_adds=True))


def _inputs(graph, name):
    """Return the operators that produce the inputs of a node, by position."""
    node = next(n for n in graph.nodes if n.name == name)
    return [graph.producer[i].op_type if i in graph.producer else "" for i in node.input]


def _quantised(graph, name):
    """Return whether activations and weights of a node come from DequantizeLinear."""
    return set(_inputs(graph, name)) == {"DequantizeLinear"}


def _readers(graph, tensor):
    return sorted(n.op_type for n in graph.consumers.get(tensor, []))


def test_every_layer_runs_in_integers(network, ranges):
    model = quantize_model(network.model, ranges, Scheme(integer_adds=True))
    onnx.checker.check_model(model, full_check=True)
    graph = Graph(model.graph)
    assert [layer.name for layer in layer_table(model)] == ANCHORS  # names and order survive
    for name in [*ANCHORS, "sum", "cat", "pool", "average", "flat"]:
        assert _quantised(graph, name), name
    # Activations are quantised once, after the Relu.
    assert _readers(graph, "s0") == ["Relu"]
    assert _readers(graph, "a0") == ["Relu"]
    # The input is quantised once, and the output not at all.
    assert _readers(graph, "x") == ["QuantizeLinear"]
    assert graph.producer["y"].op_type == "Gemm"


def test_float_operators_read_exact_values(network, ranges):
    graph = Graph(quantize_model(network.model, ranges, Scheme()).graph)
    # conv -> Q -> DQ -> Sigmoid would lose accuracy and gain nothing.
    assert _readers(graph, "g") == ["Mul", "Sigmoid"]
    assert _readers(graph, "m") == ["QuantizeLinear"]


def test_results_are_near(network, ranges, batches):
    exact, quantised = (
        Reference(m) for m in (network.model, quantize_model(network.model, ranges, Scheme()))
    )
    for inputs in batches:
        got, want = quantised(inputs)[0], exact(inputs)[0]
        assert 0 < np.abs(got - want).max() < 0.05 * np.abs(want).max()


@pytest.mark.parametrize("types", ["u8s8", "s8s8"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_types_and_zero_points(network, ranges, types, symmetric):
    model = quantize_model(network.model, ranges, Scheme(types, symmetric=symmetric))
    graph = Graph(model.graph)
    zeros = {int(graph.array(n.input[2])) for n in graph.nodes if n.op_type == "QuantizeLinear"}
    kinds = {graph.array(n.input[2]).dtype for n in graph.nodes if n.op_type == "QuantizeLinear"}
    assert kinds == {np.dtype(np.uint8 if types == "u8s8" else np.int8)}
    middle = 128 if types == "u8s8" else 0
    assert (zeros == {middle}) is symmetric
    weights = [i for i in graph.constants.values() if len(i.dims) == 4]
    assert {i.data_type for i in weights} == {onnx.TensorProto.INT8}


@pytest.mark.parametrize("per_channel", [True, False])
def test_scales_of_weights(network, ranges, per_channel):
    model = quantize_model(network.model, ranges, Scheme(per_channel=per_channel))
    graph = Graph(model.graph)
    node = next(n for n in graph.nodes if n.name == "right")
    dequantise = graph.producer[node.input[1]]
    scale = graph.array(dequantise.input[1])
    weight = numpy_helper.to_array(Graph(network.model.graph).constants["right.w"])
    largest = np.abs(weight).max(axis=(1, 2, 3) if per_channel else None)
    np.testing.assert_allclose(scale, largest / 127, rtol=1e-5)
    assert not graph.array(dequantise.input[2]).any()


@pytest.mark.parametrize("name", ANCHORS)
def test_excluded_layers_stay_float(network, ranges, name):
    model = quantize_model(network.model, ranges, Scheme(), [name])
    graph = Graph(model.graph)
    node = next(n for n in graph.nodes if n.name == name)
    before = next(n for n in network.model.graph.node if n.name == name)
    assert list(node.input[1:]) == list(before.input[1:])  # weights and bias are untouched
    old = Graph(network.model.graph)
    for constant in node.input[1:]:
        np.testing.assert_array_equal(graph.array(constant), old.array(constant))
    for other in set(ANCHORS) - {name}:
        assert _quantised(graph, other), other


def test_joining_operators_need_integers_around_them(network, ranges):
    quantizer = Quantizer(network.model, ranges, Scheme(integer_adds=True))
    everything = set(ANCHORS) | {"sum", "cat", "pool", "average", "flat"}
    assert quantizer.integer_nodes() == everything
    assert "sum" not in quantizer.integer_nodes(["left"])  # one operand would be float
    assert {"average", "flat"} & quantizer.integer_nodes(["fc"]) == set()  # no reader needs 8 bits
    assert quantizer.integer_nodes(ANCHORS) == set()
    graph = Graph(quantizer(["fc"]).graph)
    assert _readers(graph, "d") == ["GlobalAveragePool"]


def test_additions_are_float32_on_a_cpu(network, ranges):
    """The result of an integer layer is added as it is; layers that read the sum quantize it."""
    on_cpu, on_gpu = (
        Quantizer(network.model, ranges, scheme_for("u8s8", resolve_target(name).arch()))
        for name in ("sapphirerapids", "nvidia-h200")
    )
    assert on_gpu.integer_nodes() - on_cpu.integer_nodes() == {"sum"}
    graph = Graph(on_cpu().graph)
    assert _inputs(graph, "sum")[0] == "Conv"
    assert _readers(graph, "a0") == ["Relu"]
    assert _quantised(graph, "right")


def test_all_excluded_is_the_float_model(network, ranges, batches):
    model = quantize_model(network.model, ranges, Scheme(), ANCHORS)
    assert not is_quantized(model)
    np.testing.assert_array_equal(
        Reference(model)(batches[0])[0], Reference(network.model)(batches[0])[0]
    )


def test_concat_quantises_its_own_operands_with_its_scale(network, ranges):
    graph = Graph(quantize_model(network.model, ranges, Scheme()).graph)
    cat = next(n for n in graph.nodes if n.name == "cat")
    after = graph.consumers[cat.output[0]][0]
    shared, own = (graph.producer[name] for name in cat.input)
    assert list(own.input[1:]) == list(after.input[1:])  # "r" is read by nothing else
    assert list(shared.input[1:]) != list(after.input[1:])  # "a" is read by "right" too


def test_pooling_keeps_the_scale(network, ranges):
    graph = Graph(quantize_model(network.model, ranges, Scheme()).graph)
    pool = next(n for n in graph.nodes if n.name == "pool")
    [after] = graph.consumers[pool.output[0]]
    assert list(graph.producer[pool.input[0]].input[1:]) == list(after.input[1:])


def test_a_float_reader_keeps_float_inputs_and_dequantises_integer_ones(make_model):
    """The pass is surgery.free_float_readers; the output of the model stays exact."""
    rng = np.random.default_rng(0)
    constants = {f"w{i}": rng.standard_normal((4, 4)).astype(np.float32) for i in range(3)}
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], "tanh"),
        helper.make_node("MatMul", ["t", "w0"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "w1"], ["k"], "second"),
        helper.make_node("Exp", ["t"], ["e"], "of_float"),
        helper.make_node("Exp", ["h"], ["i"], "of_integer"),
        helper.make_node("MatMul", ["k", "w2"], ["o"], "third"),
        helper.make_node("Sum", ["e", "i", "o"], ["z"], "total"),
    ]
    shape = ("float32", (2, 4))
    model = prepare(make_model(nodes, {"x": shape}, {"z": shape, "k": shape}, constants), {}).model
    batch = {"x": rng.standard_normal((2, 4)).astype(np.float32)}
    quantised = quantize_model(model, collect_ranges(model, [batch]), Scheme())
    onnx.checker.check_model(quantised, full_check=True)
    graph = Graph(quantised.graph)
    assert _inputs(graph, "of_float") == ["Tanh"]
    assert _inputs(graph, "of_integer") == ["DequantizeLinear"]
    assert graph.producer["k"].op_type == "MatMul"
    assert _quantised(graph, "third")
    assert [o.name for o in quantised.graph.output] == ["z", "k"]
    Reference(quantised)(batch)


@pytest.mark.parametrize(
    ("rows", "integer_adds", "operand"),
    [
        (2, False, "MatMul"),
        (25_001, False, "DequantizeLinear"),  # too many values to store twice
        (2, True, "DequantizeLinear"),
    ],
)
def test_residual_sum_reads_small_results_in_float(make_model, rows, integer_adds, operand):
    """The next layer reads the 8-bit form of the same result."""
    rng = np.random.default_rng(1)
    constants = {f"w{i}": rng.standard_normal((4, 4)).astype(np.float32) for i in range(3)}
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "w1"], ["k"], "second"),
        helper.make_node("Tanh", ["k"], ["t"], "tanh"),
        helper.make_node("Add", ["h", "t"], ["s"], "sum"),
        helper.make_node("MatMul", ["s", "w2"], ["z"], "third"),
    ]
    shape = ("float32", (rows, 4))
    model = prepare(make_model(nodes, {"x": shape}, {"z": shape}, constants), {}).model
    batch = {"x": rng.standard_normal((rows, 4)).astype(np.float32)}
    scheme = Scheme(integer_adds=integer_adds)
    quantised = quantize_model(model, collect_ranges(model, [batch], scheme), scheme, ["tanh"])
    graph = Graph(quantised.graph)
    assert _inputs(graph, "sum") == [operand, "Tanh"]
    assert _quantised(graph, "second") and _quantised(graph, "third")
    np.testing.assert_allclose(Reference(quantised)(batch)[0], Reference(model)(batch)[0], atol=0.5)


def test_shared_weights(make_model):
    """Two layers share their weights; one of them stays float."""
    weight = np.eye(4, dtype=np.float32)
    model = make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
            helper.make_node("MatMul", ["h", "w"], ["y"], "second"),
        ],
        {"x": ("float32", (2, 4))},
        {"y": ("float32", (2, 4))},
        {"w": weight},
    )
    batch = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
    ranges = collect_ranges(model, [batch])
    graph = Graph(quantize_model(model, ranges, Scheme(), ["second"]).graph)
    assert _quantised(graph, "first")
    node = next(n for n in graph.nodes if n.name == "second")
    np.testing.assert_array_equal(graph.array(node.input[1]), weight)


@pytest.mark.parametrize("bias", [(3,), (1, 3), (1,), ()])
def test_gemm_with_factors_and_odd_biases(make_model, bias):
    rng = np.random.default_rng(0)
    model = make_model(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "fc", alpha=0.5, beta=2.0, transB=1)],
        {"x": ("float32", (2, 4))},
        {"y": ("float32", (2, 3))},
        {"w": rng.standard_normal((3, 4)).astype(np.float32),
         "b": np.asarray(rng.standard_normal(bias), np.float32)},
    )  # fmt: skip
    batch = {"x": rng.standard_normal((2, 4)).astype(np.float32)}
    quantised = quantize_model(model, collect_ranges(model, [batch]), Scheme())
    onnx.checker.check_model(quantised, full_check=True)
    assert _quantised(Graph(quantised.graph), "fc")
    got, want = Reference(quantised)(batch)[0], Reference(model)(batch)[0]
    np.testing.assert_allclose(got, want, atol=0.05)


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_old_opsets(make_model, opset):
    rng = np.random.default_rng(0)
    model = make_model(
        [
            helper.make_node("Conv", ["x", "w"], ["h"], "first"),
            helper.make_node("Squeeze", ["h"], ["s"], "squeeze", axes=[2]),
            helper.make_node("Conv", ["s", "v"], ["y"], "second"),
        ],
        {"x": ("float32", (1, 2, 3, 8))},
        {"y": ("float32", None)},
        {"w": rng.standard_normal((4, 2, 3, 3)).astype(np.float32),
         "v": rng.standard_normal((4, 4, 3)).astype(np.float32)},
        opset=opset,
    )  # fmt: skip
    model = prepare(model, {}).model
    batch = {"x": rng.standard_normal((1, 2, 3, 8)).astype(np.float32)}
    quantised = quantize_model(model, collect_ranges(model, [batch]), Scheme())
    graph = Graph(quantised.graph)
    assert all(_quantised(graph, name) for name in ("first", "second"))
    got, want = Reference(quantised)(batch)[0], Reference(model)(batch)[0]
    np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max())


def test_products_of_activations_are_an_option(make_model):
    model = make_model(
        [
            helper.make_node("Transpose", ["x"], ["t"], "t", perm=[1, 0]),
            helper.make_node("MatMul", ["x", "t"], ["y"], "scores"),
        ],
        {"x": ("float32", (4, 4))},
        {"y": ("float32", (4, 4))},
    )
    batch = {"x": np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)}
    ranges = collect_ranges(model, [batch])
    assert not is_quantized(quantize_model(model, ranges, Scheme()))
    wanted = quantize_model(model, ranges, Scheme(activation_matmul=True))
    assert _quantised(Graph(wanted.graph), "scores")


def test_layers_without_a_finite_range_stay_float(network, ranges):
    odd = Ranges("minmax", None, 1, {**ranges.tensors, "m": (float("-inf"), 1.0)})
    quantizer = Quantizer(network.model, odd, Scheme())
    assert set(ANCHORS) - quantizer.integer_nodes() == {"deep"}


def test_model_is_not_changed_and_nothing_is_said(network, ranges, caplog, capsys):
    before = network.model.SerializeToString(deterministic=True)
    with caplog.at_level(logging.DEBUG):
        quantize_model(network.model, ranges, Scheme())
    assert network.model.SerializeToString(deterministic=True) == before
    assert not caplog.records
    assert capsys.readouterr() == ("", "")
    logging.getLogger("afterwards").warning("heard")
    assert [r.message for r in caplog.records] == ["heard"]


def test_quantised_models_are_refused(network, ranges, batches):
    quantised = quantize_model(network.model, ranges, Scheme())
    assert (is_quantized(network.model), is_quantized(quantised)) == (False, True)
    for refuse in (
        lambda: quantize_model(quantised, ranges, Scheme()),
        lambda: collect_ranges(quantised, batches),
    ):
        with pytest.raises(ConfigError, match="is quantised already; leave dtype as it is"):
            refuse()


def test_half_precision_is_refused(make_model):
    half = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "m")],
        {"x": ("float16", (2, 2))},
        {"y": ("float16", (2, 2))},
        {"w": np.ones((2, 2), np.float16)},
    )
    with pytest.raises(ConfigError, match="the weights of 'm' are 16-bit; give the float32 model"):
        quantize_model(half, Ranges("minmax", None, 1, {}), Scheme())


def test_wrong_names_and_ranges(network, ranges):
    with pytest.raises(ConfigError, match="but 'conv9' is none; take their names from the layer"):
        quantize_model(network.model, ranges, Scheme(), ["conv9"])
    fewer = Ranges("minmax", None, 1, {"x": (0.0, 1.0)})
    with pytest.raises(ConfigError, match=r"belong to the model .* lack 's' and 10"):
        quantize_model(network.model, fewer, Scheme(integer_adds=True))


def test_operators_without_a_newer_opset(make_model):
    model = make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "m"),
            helper.make_node("Mystery", ["h"], ["y"], "odd", domain=""),
        ],
        {"x": ("float32", (2, 2))},
        {"y": ("float32", (2, 2))},
        {"w": np.ones((2, 2), np.float32)},
        opset=9,
    )
    with pytest.raises(ModelError, match="of opset 13 or later, but this one has opset 9"):
        quantize_model(model, Ranges("minmax", None, 1, {}), Scheme())


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_skip_set_of_the_network_is_valid(network, batches, ranges, data):
    exclude = data.draw(st.sets(st.sampled_from([*ANCHORS, "sum", "cat", "pool"])))
    types = data.draw(st.sampled_from(["u8s8", "s8s8"]))
    quantizer = Quantizer(network.model, ranges, Scheme(types))
    model = quantizer(exclude)
    onnx.checker.check_model(model, full_check=True)
    graph = Graph(model.graph)
    integer = quantizer.integer_nodes(exclude)
    assert not integer & exclude
    for name in integer:
        assert _quantised(graph, name), name
    for node in graph.nodes:
        if node.op_type == "QuantizeLinear":  # some node needs it
            pair = graph.consumers[node.output[0]][0]
            readers = {n.name for n in graph.consumers[pair.output[0]]}
            made = graph.producer.get(node.input[0])
            assert readers & integer or (made is not None and made.op_type == "MaxPool")
    got, want = Reference(model)(batches[0])[0], Reference(network.model)(batches[0])[0]
    assert np.abs(got - want).max() < 0.06 * np.abs(want).max()
