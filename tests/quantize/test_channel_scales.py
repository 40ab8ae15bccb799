"""Channel scales of depthwise convolutions: where they apply, and what they gain."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tvmopt.errors import ConfigError
from tvmopt.frontend import prepare
from tvmopt.quantize import Quantizer, Ranges, Scheme, collect_ranges, with_channel_scales
from tvmopt.quantize.channel_scales import (
    ChannelExtremes,
    ChannelScales,
    _scales,
    collect_channel_scales,
)
from tvmopt.quantize.correct import output_error
from tvmopt.quantize.downstream import new_session

from .saturation import check_no_value_saturates

CHANNELS = 12


def _network(make_model, activation="Relu", *, second_reader=False, pool=False, multiplier=1):
    """Return ``first`` -> activation -> ``depthwise`` -> ``last``; unequal channels."""
    rng = np.random.default_rng(0)
    sizes = np.geomspace(0.02, 8, CHANNELS).reshape(-1, 1, 1, 1)
    wide = CHANNELS * multiplier
    gains = np.repeat(1 / sizes, multiplier, axis=0)
    constants = {
        "w0": (rng.standard_normal((CHANNELS, 3, 1, 1)) * sizes).astype(np.float32),
        "b0": np.zeros(CHANNELS, np.float32),
        "w1": (rng.standard_normal((wide, 1, 3, 3)) * gains).astype(np.float32),
        "b1": np.zeros(wide, np.float32),
        "w2": rng.standard_normal((4, wide, 1, 1)).astype(np.float32),
        "b2": np.zeros(4, np.float32),
        "six": np.float32(6),
        "zero": np.float32(0),
    }
    more = ["zero", "six"] if activation == "Clip" else []
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], "first"),
        helper.make_node(activation, ["a", *more], ["r"], "activation"),
    ]
    if pool:
        options = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        nodes.append(helper.make_node("MaxPool", ["r"], ["p"], "pool", **options))
    read = "p" if pool else "r"
    nodes += [
        helper.make_node(
            "Conv", [read, "w1", "b1"], ["d"], "depthwise", group=CHANNELS, pads=[1, 1, 1, 1]
        ),
        helper.make_node("Conv", ["d", "w2", "b2"], ["y"], "last"),
    ]
    outputs = {"y": ("float32", (1, 4, 8, 8))}
    if second_reader:
        nodes.append(helper.make_node("Sigmoid", [read], ["z"], "other"))
        outputs["z"] = ("float32", (1, CHANNELS, 8, 8))
    model = make_model(nodes, {"x": ("float32", (1, 3, 8, 8))}, outputs, constants)
    draws = [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(16)]
    return prepare(model, {}).model, draws


@pytest.mark.parametrize("activation", ["Relu", "HardSwish", "Clip"])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_unequal_channels_lose_less(make_model, activation, multiplier):
    model, batches = _network(make_model, activation, multiplier=multiplier)
    ranges = collect_ranges(model, batches[:12])
    scaled, line = with_channel_scales(model, ranges, batches[:12])
    assert "depthwise" in scaled.channel_scales
    before, after = (output_error(model, one, batches[12:]) for one in (ranges, scaled))
    assert after < before / 4
    assert line.startswith("a scale for each channel of the inputs of 1 depthwise convolutions")


def test_equal_channels_keep_one_scale(make_model, monkeypatch):
    model, batches = _network(make_model)
    worse = {"depthwise": ChannelScales((1 / 256,) * CHANNELS, 0.0, 0.01)}
    module = with_channel_scales.__globals__
    monkeypatch.setitem(module, "collect_channel_scales", lambda *_: worse)
    ranges = collect_ranges(model, batches)
    kept, line = with_channel_scales(model, ranges, batches)
    assert kept == ranges
    assert line.startswith("one scale for all channels: ")
    assert "more for 1 depthwise convolutions: " in line


@pytest.mark.parametrize("other", [{"second_reader": True}, {"pool": True}])
def test_an_input_with_another_reader_or_maker_keeps_one_scale(make_model, other):
    model, batches = _network(make_model, **other)
    ranges = collect_ranges(model, batches)
    scaled, _ = with_channel_scales(model, ranges, batches)
    assert "depthwise" not in scaled.channel_scales


def test_a_skipped_layer_has_no_scales(make_model):
    model, batches = _network(make_model)
    ranges, _ = with_channel_scales(model, collect_ranges(model, batches), batches)
    quantizer = Quantizer(model, ranges, Scheme())
    assert "r.scaled" in {node.name for node in quantizer().graph.node}
    assert "r.scaled" not in {node.name for node in quantizer(["depthwise"]).graph.node}
    every = quantizer(["first", "depthwise", "last"])
    got = new_session(every).run(None, batches[0])[0]
    np.testing.assert_array_equal(got, new_session(model).run(None, batches[0])[0])


def test_one_scale_for_all_weights_excludes_channel_scales(make_model):
    model, batches = _network(make_model)
    ranges, _ = with_channel_scales(model, collect_ranges(model, batches), batches)
    quantised = Quantizer(model, ranges, Scheme(per_channel=False))()
    assert "r.scaled" not in {node.name for node in quantised.graph.node}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        # Subnormal ranges have no bits for a tolerance of 1e-5.
        st.tuples(*[st.floats(-50, 50, width=32, allow_subnormal=False)] * 2),
        min_size=1,
        max_size=6,
    )
)
def test_no_value_of_the_samples_saturates(pairs):
    low, high = (np.array(side, np.float32) for side in zip(*map(sorted, pairs), strict=True))
    found = _scales(low, high, np.ones((len(low), 1, 3, 3), np.float32))
    check_no_value_saturates(found, low, high)


@pytest.mark.parametrize("name", ["first", "missing"])
def test_scales_of_another_model(make_model, name):
    model, batches = _network(make_model)
    scales = {name: ChannelScales((0.5, 1.0), 0.0, 1.0)}
    ranges = dataclasses.replace(collect_ranges(model, batches), channel_scales=scales)
    with pytest.raises(ConfigError, match=rf"layer '{name}' is no conv.* 2 of them; cal"):
        Quantizer(model, ranges, Scheme())


def test_scales_of_two_parts_are_those_of_all_samples(make_model):
    model, batches = _network(make_model)
    extremes = ChannelExtremes()
    first = collect_channel_scales(model, batches[:4], extremes)
    both = collect_channel_scales(model, batches[4:], extremes)
    assert first != both == collect_channel_scales(model, batches)


def test_round_trip_through_json(make_model):
    model, batches = _network(make_model)
    scales = collect_channel_scales(model, batches)
    ranges = Ranges("minmax", None, 1, {"a": (0.0, 1.0)}, {}, scales)
    assert Ranges.from_dict(json.loads(json.dumps(ranges.to_dict()))) == ranges
