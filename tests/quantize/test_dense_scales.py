"""Channel scales of dense convolutions: where they apply, and what they gain."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tvmopt.frontend import prepare
from tvmopt.quantize import HeldBack, Quantizer, Scheme, collect_ranges, with_channel_scales
from tvmopt.quantize.channel_scales import ChannelExtremes, collect_channel_scales, dense_layers
from tvmopt.quantize.correct import output_error
from tvmopt.quantize.dense_scales import dense_scales, migrated, with_extremes
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.normalise import normalise
from tvmopt.quantize.probe import ProbedLayer, Setting

from .saturation import check_no_value_saturates

CHANNELS = 16


def _network(make_model, smallest, *, second_reader=False):
    """Return ``first`` -> Relu -> ``second`` -> ``last``; the Relu has unequal channels.

    The weights of ``second`` undo the sizes, so that all channels count alike.
    """
    rng = np.random.default_rng(0)
    sizes = np.geomspace(smallest, 1, CHANNELS)
    constants = {
        "w0": (rng.standard_normal((CHANNELS, 3, 1, 1)) * sizes[:, None, None, None]),
        "b0": np.zeros(CHANNELS),
        "w1": rng.standard_normal((8, CHANNELS, 3, 3)) / sizes[:, None, None],
        "b1": np.zeros(8),
        "w2": rng.standard_normal((4, 8, 1, 1)),
    }
    constants = {name: value.astype(np.float32) for name, value in constants.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w1", "b1"], ["s"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["s", "w2"], ["y"], "last"),
    ]
    outputs = {"y": ("float32", (1, 4, 8, 8))}
    if second_reader:
        nodes.append(helper.make_node("Neg", ["r"], ["z"], "negative"))
        outputs["z"] = ("float32", (1, CHANNELS, 8, 8))
    model = make_model(nodes, {"x": ("float32", (1, 3, 8, 8))}, outputs, constants)
    draws = [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(16)]
    return prepare(model, {}).model, draws


def _scales(model, batches):
    extremes, ranges = ChannelExtremes(), collect_ranges(model, batches)
    assert collect_channel_scales(model, batches, extremes) == {}
    return dense_scales(model, ranges, extremes, batches, Scheme()), ranges, extremes


def test_unequal_channels_lose_less(make_model):
    model, batches = _network(make_model, 0.02)
    ranges = collect_ranges(model, batches[:12])
    scaled, line = with_channel_scales(model, ranges, batches[:12])
    assert "second" in scaled.channel_scales
    before, after = (output_error(model, one, batches[12:]) for one in (ranges, scaled))
    assert after < before / 2
    assert line.startswith("a scale for each channel of the inputs of ")
    assert "dense convolutions changes the error of the outputs from" in line


def test_scales_that_gain_nothing_are_left_out(make_model):
    model, batches = _network(make_model, 1.0)
    assert "second" not in _scales(model, batches)[0]


def test_an_input_with_another_reader_keeps_one_scale(make_model):
    model, batches = _network(make_model, 0.02, second_reader=True)
    found = [node.name for node in dense_layers(Graph(normalise(model).graph))]
    assert "second" not in found and "last" in found
    assert "second" not in _scales(model, batches)[0]


def test_held_back_samples_decide(make_model, monkeypatch):
    model, batches = _network(make_model, 0.02)
    monkeypatch.setattr(HeldBack, "error", lambda self, ranges: float(bool(ranges.channel_scales)))
    ranges = collect_ranges(model, batches)
    kept, line = with_channel_scales(model, ranges, batches)
    assert kept == ranges and line.startswith("one scale for all channels: error of the outputs")


def test_a_layer_alone_is_the_layer_of_the_quantised_model(make_model):
    """The measured error of a single layer with scales is that of the model with only this one."""
    model, batches = _network(make_model, 0.02)
    scales, ranges, _ = _scales(model, batches)
    ranges = dataclasses.replace(ranges, channel_scales=scales)
    quantised = Quantizer(model, ranges, Scheme())(["first", "last"])
    exact = normalise(model)
    graph = Graph(exact.graph)
    recorded = dict(batches[0])
    parts = dict.fromkeys(("r", "s"))
    for name in parts:
        copy = type(exact)()
        copy.CopyFrom(exact)
        copy.graph.output.append(helper.make_tensor_value_info(name, 1, graph.dims(name)))
        recorded[name] = new_session(copy).run([name], batches[0])[0]
    [node] = [node for node in graph.nodes if node.name == "second"]
    alone = ProbedLayer(Setting(exact, graph, Scheme(), ranges), node, recorded)(recorded, "int8")
    last = new_session(quantised).run(None, batches[0])[0]
    weight = graph.array("w2")[:, :, 0, 0]
    np.testing.assert_allclose(np.einsum("oc,bchw->bohw", weight, alone), last, atol=2e-3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.floats(-50, 50, width=32, allow_subnormal=False)] * 2),
        min_size=2,
        max_size=6,
    ),
    st.sampled_from([0.0, 0.5, 0.75, 1.0]),
)
def test_no_value_of_the_samples_saturates(pairs, exponent):
    low, high = (np.array(side, np.float32) for side in zip(*map(sorted, pairs), strict=True))
    weight = np.random.default_rng(0).standard_normal((3, len(low), 1, 1)).astype(np.float32)
    found = migrated(low, high, weight, exponent)
    check_no_value_saturates(found, low, high)


@pytest.mark.parametrize("grown", [1.0, 3.0])
def test_ranges_hold_the_extremes_of_other_samples(make_model, grown):
    model, batches = _network(make_model, 0.02)
    scales, _, extremes = _scales(model, batches)
    extremes.highs["r"] *= grown
    wider = with_extremes(model, {"second": scales["second"]}, extremes)["second"]
    assert wider.factors == scales["second"].factors
    assert (wider.high > scales["second"].high) is (grown > 1)
