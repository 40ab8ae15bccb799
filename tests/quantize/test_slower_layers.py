"""Layers that keep float32: what is predicted, and what is chosen."""

from __future__ import annotations

import math

import hypothesis
import numpy as np
import onnx
import pytest
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, layer_table, parse_input_shapes, prepare
from tvmopt.quantize import Scheme, collect_ranges, quantize_model, slower_layers
from tvmopt.quantize.layer_choices import LayerChoice, total_seconds
from tvmopt.transform.anchors import anchors
from tvmopt.transform.conversion import convert_module

find = slower_layers.slower_layers
AMX = resolve_target("sapphirerapids", 2)
MARGIN = slower_layers._MARGIN


def layer(index, as_float, as_narrow):
    return LayerChoice(
        index, f"conv{index}", ("float32", "int8"), (as_float, as_narrow), (0.0, 0.0)
    )


def chain(costs, change):
    """Return layers in a row, and ``change`` between neighbours of different dtypes."""
    choices = [layer(i, *cost) for i, cost in enumerate(costs)]
    table = np.array([[0.0, change], [change, 0.0]])
    return choices, {(i, i + 1): table for i in range(len(costs) - 1)}


def chosen(costs, change=0.0):
    return slower_layers.least_time(*chain(costs, change))


def test_float32_must_win_by_a_margin():
    assert chosen([(0.75, 1.0)]) == (0,)
    assert chosen([(0.85, 1.0)]) == (1,)
    assert chosen([(1.0, 1.0)]) == (1,)


def test_a_single_layer_between_narrow_ones_pays_for_two_changes():
    costs = [(10.0, 1.0), (0.5, 1.0), (10.0, 1.0)]
    assert chosen(costs, change=0.1) == (1, 0, 1)
    assert chosen(costs, change=0.2) == (1, 1, 1)


def test_layers_in_a_row_share_the_changes():
    costs = [(10.0, 1.0), (0.5, 1.0), (0.5, 1.0), (10.0, 1.0)]
    assert chosen(costs, change=0.2) == (1, 0, 0, 1)


def test_a_layer_follows_its_neighbours_where_the_changes_cost_more():
    """The middle one is no faster in float32, yet a change before and after it costs more."""
    assert chosen([(0.2, 1.0), (1.05, 1.0), (0.2, 1.0)], change=0.3) == (0, 0, 0)


def test_a_layer_that_is_widened_must_win_by_the_margin():
    choices, changes = chain([(1.1, 1.0), (1.1, 1.0), (1.3, 1.0)], 0.0)
    assert slower_layers.least_time(choices, changes, widened={1, 2}) == (1, 0, 1)


def test_layers_without_a_prediction_keep_their_dtype():
    assert chosen([(math.inf, 0.0), (0.2, 1.0)], change=0.1) == (1, 0)


_COSTS = st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), min_size=1, max_size=8)


@hypothesis.given(_COSTS, st.floats(0, 3))
def test_what_is_chosen_saves_the_margin_of_what_it_replaces(costs, change):
    choices, changes = chain(costs, change)
    choice = slower_layers.least_time(choices, changes)
    saved = total_seconds([1] * len(costs), choices, changes)
    saved -= total_seconds(choice, choices, changes)
    replaced = sum(c[1] for c, at in zip(costs, choice, strict=True) if at == 0)
    assert saved >= MARGIN * replaced - 1e-9


def model_of(shape, *convolutions):
    """Return a prepared model of convolutions in a row, each (weight shape, attributes)."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for n, (weight, attrs) in enumerate(convolutions):
        data = 0.1 * random.standard_normal(weight).astype(np.float32)
        weights.append(numpy_helper.from_array(data, f"w{n}"))
        nodes.append(helper.make_node("Conv", [last, f"w{n}"], [f"c{n}"], name=f"conv{n}", **attrs))
        nodes.append(helper.make_node("Relu", [f"c{n}"], [f"y{n}"], name=f"relu{n}"))
        last = f"y{n}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", onnx.TensorProto.FLOAT, shape)],
        [value(last, onnx.TensorProto.FLOAT, None)],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return prepare(onnx.shape_inference.infer_shapes(model), parse_input_shapes("")).model


def converted(model, dtype):
    source = model
    if dtype == "int8":
        shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        inputs = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
        ranges = collect_ranges(model, [inputs], Scheme(), lambda *_: None)
        source = quantize_model(model, ranges, Scheme())
    return convert_module(import_onnx(source), dtype=dtype, layout="NHWC").mod


# One channel and a long dilated window along it: no dot-product instruction fits, since its columns
# do not follow each other in memory. Its kernel computes it lane by lane.
LONG_WINDOW = (16, 1, 1, 256), {"strides": [1, 64], "dilations": [1, 2]}
AUDIO = [1, 1, 1, 16000]


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_long_window_of_one_channel_keeps_float32(dtype):
    model = model_of(AUDIO, LONG_WINDOW)
    found = find(converted(model, dtype), model, layer_table(model), AMX)
    assert list(found) == [0]
    assert found[0].startswith("slower_layers: float32 is predicted to take ")
    assert found[0].endswith(f"% of the time of {dtype}")


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_columns_that_follow_each_other_fill_the_tiles_of_amx(dtype):
    model = model_of(AUDIO, ((16, 1, 1, 256), {"strides": [1, 64]}))
    assert not find(converted(model, dtype), model, layer_table(model), AMX)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_dense_layers_keep_the_dtype(dtype):
    model = model_of([1, 32, 28, 28], ((64, 32, 3, 3), {}), ((64, 64, 1, 1), {}))
    assert not find(converted(model, dtype), model, layer_table(model), AMX)


def test_only_the_layer_that_is_slower_keeps_float32():
    model = model_of(AUDIO, LONG_WINDOW, ((256, 16, 1, 9), {}))
    mod = converted(model, "bfloat16")
    assert list(find(mod, model, layer_table(model), AMX)) == [0]
    assert not find(mod, model, layer_table(model), AMX, keep=[0])


GROUPED = (136, 34, 1, 1), {"group": 4}


def test_grouped_convolutions_keep_float32_where_only_tiles_multiply_bfloat16():
    """With a depthwise one between, of few FLOPs, which would cost two changes of dtype."""
    depthwise = (136, 1, 3, 3), {"group": 136, "pads": [1, 1, 1, 1]}
    dense = (136, 136, 1, 1), {}
    model = model_of([1, 136, 28, 28], GROUPED, depthwise, GROUPED, GROUPED, dense)
    mod, layers = converted(model, "bfloat16"), layer_table(model)
    found = find(mod, model, layers, AMX)
    assert list(found) == [0, 1, 2, 3]
    assert found[0].endswith("% of the time of bfloat16, which this CPU multiplies in float32")
    assert not find(mod, model, layers, resolve_target("znver4", 2))


@pytest.mark.parametrize(
    ("layout", "widens"), [("NHWC", False), ("NCHW16c", False), ("NCHW", True)]
)
def test_instructions_need_contiguous_channels(layout, widens):
    model = model_of([1, 32, 8, 8], ((32, 32, 3, 3), {}))
    mod = convert_module(import_onnx(model), dtype="bfloat16", layout=layout).mod
    [anchor] = anchors(mod)
    for cpu in ("sapphirerapids", "znver4"):
        target = resolve_target(cpu, 2)
        assert slower_layers._widens(anchor.call, target) == widens
        assert slower_layers._fills_dot_products(anchor.call, target) != widens


def test_nothing_is_predicted_for_a_gpu():
    model = model_of(AUDIO, LONG_WINDOW)
    mod = converted(model, "bfloat16")
    assert not find(mod, model, layer_table(model), resolve_target("nvidia-h200", 1))


def test_equal_layers_are_predicted_once(monkeypatch):
    calls = []
    inner = slower_layers.layer_cycles
    monkeypatch.setattr(
        slower_layers, "layer_cycles", lambda *args: calls.append(args) or inner(*args)
    )
    depthwise = (40, 1, 5, 5), {"group": 40, "pads": [2, 2, 2, 2]}
    model = model_of([1, 40, 20, 20], depthwise, depthwise, depthwise)
    mod, layers = converted(model, "bfloat16"), layer_table(model)
    by_index = {anchor.index: anchor for anchor in anchors(mod)}
    found = slower_layers.predicted_cycles(by_index, layers, AMX)
    assert set(found) == {0, 1, 2}
    assert len(set(found.values())) == 1
    assert len(calls) == 2


def test_small_layers_are_not_predicted():
    tiny = (2, 8, 1, 1), {"strides": [32, 32]}
    model = model_of([1, 8, 64, 64], ((8, 8, 3, 3), {"pads": [1, 1, 1, 1]}), tiny)
    mod = converted(model, "bfloat16")
    by_index = {anchor.index: anchor for anchor in anchors(mod)}
    assert set(slower_layers.predicted_cycles(by_index, layer_table(model), AMX)) <= {0}


@pytest.mark.parametrize(
    ("shape", "convolution", "channels"),
    [
        ([1, 64, 8, 8], ((64, 64, 1, 1), {}), 64),
        ([1, 64, 8, 8], ((64, 2, 3, 3), {"group": 32}), 2),
        ([1, 64, 8, 8], ((64, 1, 3, 3), {"group": 64}), 1),
    ],
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NCHW16c"])
def test_channels_of_a_group(shape, convolution, channels, layout):
    model = model_of(shape, convolution)
    mod = convert_module(import_onnx(model), dtype="bfloat16", layout=layout).mod
    [anchor] = anchors(mod)
    assert slower_layers.channels_of(anchor.call) == channels
