"""Tests of the choice of a dtype for each layer."""

import dataclasses
import itertools
import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.evaluate.dataset import Batch
from tvmopt.quantize import Sensitivity, sensitivity
from tvmopt.quantize.analysis import Analysis
from tvmopt.quantize.bar import Bar
from tvmopt.quantize.dtype_map import (
    DtypeMap,
    fastest,
    nth_map,
    number_after,
    numbered,
    whole_model_dtype,
)
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.joint import JointVerdict
from tvmopt.quantize.layer_choices import (
    LayerChoice,
    between,
    dtype_changes,
    layer_choices,
    pareto_choices,
)
from tvmopt.quantize.layer_times import LayerTimes
from tvmopt.quantize.map_measurement import MapMeasurement, emulated
from tvmopt.quantize.probe import Setting
from tvmopt.quantize.quantizer import Quantizer
from tvmopt.quantize.ranges import collect_ranges
from tvmopt.quantize.report import LayerCost
from tvmopt.quantize.roofline import LayerRoofline, LayerWork, layer_dtypes, mixed_dtypes
from tvmopt.quantize.scheme import Scheme

DTYPES = ("float32", "int8", "bfloat16")
PEAKS = LayerRoofline(flops=1e9, bandwidth=1e12, faster={"int8": 4.0, "bfloat16": 2.0})


def _times(works):
    """Return the times that ``PEAKS`` gives, by the work of each layer."""
    seconds = {(i, d): PEAKS.seconds(work, d) for i, work in works.items() for d in DTYPES}
    bound = frozenset(i for i, work in works.items() if PEAKS.is_compute_bound(work))
    return LayerTimes(seconds, bound, PEAKS.bandwidth)


def _cost(index, dtype, error=0.1, **values):
    return LayerCost(index, f"n{index}", "Conv", dtype, "measured", error=error, **values)


def _map(seconds, *, holds=True, layers=(), dtypes=()):
    return DtypeMap(layers, dtypes, seconds, 0.0, 1.0, None, 0.0, 4, holds)


def test_measured_times_come_before_predicted_ones():
    """Layer 0 is measured: int8 is slower. Layer 1 is modelled, on the scale of layer 0.

    One timed layer does not outweigh the predicted ratio of int8 to float32.
    """
    costs = {
        (0, "int8"): _cost(0, "int8", latency_s=6.0, float_latency_s=4.0),
        (0, "bfloat16"): _cost(0, "bfloat16", error=0.2, float_latency_s=4.0),
        (1, "int8"): _cost(1, "int8"),
    }
    works = {0: LayerWork(2e9, 1.0), 1: LayerWork(1e9, 1.0)}
    first, second = layer_choices(costs, _times(works))
    assert first.dtypes == DTYPES
    assert first.seconds == pytest.approx((4.0, 6.0, 2.0))
    assert first.errors == (0.0, 0.1, 0.2)
    assert second.dtypes == ("float32", "int8")
    assert second.seconds == pytest.approx((2.0, 0.5))


def test_a_layer_is_predicted_from_timed_ones_that_the_roofline_bounds_alike():
    """Layers 0 to 2 are bounded by compute, 3 to 5 by memory; layers 6 and 7 are not timed.

    int8 is slower in layers 3 to 5, so layer 7 is predicted to take as long as in float32.
    """
    compute, memory = LayerWork(1e9, 1.0), LayerWork(1.0, 0.25e12)  # a second in float32 each
    works = dict.fromkeys(range(3), compute) | dict.fromkeys(range(3, 6), memory)
    works |= {6: LayerWork(2e9, 1.0), 7: LayerWork(1.0, 0.5e12)}
    costs = {(i, "int8"): _cost(i, "int8", latency_s=1.0, float_latency_s=2.0) for i in range(3)}
    costs |= {
        (i, "int8"): _cost(i, "int8", latency_s=9.0, float_latency_s=3.0) for i in range(3, 6)
    }
    costs |= {(i, "int8"): _cost(i, "int8") for i in (6, 7)}
    *_, first, second = layer_choices(costs, _times(works))
    assert first.seconds == pytest.approx((4.0, 2.0))
    assert second.seconds == pytest.approx((6.0, 6.0))


def test_layers_of_unknown_work_cost_nothing_and_others_are_left_out():
    costs = {
        (0, "int8"): _cost(0, "int8"),
        (1, "int8"): LayerCost(1, "n1", "MatMul", "int8", "not convertible"),
    }
    [only] = layer_choices(costs, _times({}))
    assert (only.index, only.seconds) == (0, (0.0, 0.0))


def test_a_dtype_that_is_predicted_to_be_slower_than_float32_stays_slower():
    """Unless timed layers say otherwise; these do not make the prediction worse."""
    times = LayerTimes({(0, "float32"): 1.0, (0, "float16"): 1.2}, frozenset(), 1.0)
    costs = {(0, "float16"): _cost(0, "float16")}
    [only] = layer_choices(costs, times)
    assert only.seconds == (1.0, 1.2)
    more = {(i, d): s for i in range(1, 4) for d, s in (("float32", 1.0), ("float16", 1.0))}
    slow = {
        (i, "float16"): _cost(i, "float16", latency_s=2.0, float_latency_s=1.0) for i in (1, 2, 3)
    }
    times = LayerTimes({**times.seconds, **more}, frozenset(), 1.0)
    assert layer_choices({**costs, **slow}, times)[0].seconds == (1.0, 1.2)


def test_a_numbered_map_has_a_part_of_the_loss_of_the_one_before():
    """After a refused map comes one of at most 0.8 of its loss, then one of 0.8 of that."""
    losses = {3.0: 0.0006, 1.0: 0.01, 2.0: 0.003, 2.5: 0.0025, 9.0: 0.0}
    maps = _losing(losses)
    maps.append(dataclasses.replace(_map(1.5, holds=False), predicted_loss=0.0004))
    assert [nth_map(maps, n).predicted_s for n in range(5)] == [1.0, 2.0, 3.0, 9.0, 9.0]
    assert [_after(maps, n) for n in range(5)] == [1, 2, 3, None, None]
    near = [*maps, dataclasses.replace(_map(2.2), predicted_loss=0.0025)]
    assert [_after(near, n) for n in range(3)] == [1, 2, 3]


def _after(maps, refused):
    return number_after(maps, refused, 0.012, 0.01)


@pytest.mark.parametrize(
    ("drop", "number"),
    [
        (0.014, 1),
        (0.02, 2),
        (0.04, 3),
        (0.5, 4),
        (0.004, 1),
        (-0.01, 1),
        (0.0, 1),  # refused for another reason
    ],
)
def test_the_next_map_loses_as_much_less_as_the_drop_is_to_be(drop, number):
    losses = (0.1, 0.08, 0.06, 0.036, 0.0126, 0.0)
    maps = _losing({1.0 + n: loss for n, loss in enumerate(losses)})
    assert number_after(maps, 0, drop, 0.01) == number


def _losing(losses):
    """Return maps by time, each with a predicted loss; float32 has none, and no layers."""
    return [
        dataclasses.replace(_map(s, layers=(0,) if loss else ()), predicted_loss=loss)
        for s, loss in losses.items()
    ]


def test_after_a_refused_assumption_comes_what_was_measured_to_hold():
    """All layers in bfloat16, say: faster than the unmeasured map that should lose a quarter."""
    assumed = dataclasses.replace(_map(1.0, holds=False), predicted_loss=0.004, is_assumed=True)
    unmeasured = dataclasses.replace(
        _map(2.0, holds=False), predicted_loss=0.001, is_undecided=True, samples=0
    )
    measured = dataclasses.replace(_map(1.9), predicted_loss=0.0035, samples=40)
    last = dataclasses.replace(_map(9.0), predicted_loss=0.0, samples=0)
    maps = [assumed, unmeasured, measured, last]
    assert [nth_map(maps, n) for n in range(4)] == [assumed, measured, unmeasured, last]
    assert _after(maps, 0) == 1
    # A near one that was not measured is tried before.
    near = dataclasses.replace(unmeasured, predicted_s=1.5, predicted_loss=0.0032)
    assert [nth_map([*maps, near], n) for n in range(4)] == [assumed, near, measured, unmeasured]
    assert _after([*maps, near], 0) == 1
    # Evaluation refused a map that had been measured to hold: another such one is no surer.
    shown = dataclasses.replace(assumed, holds=True, is_assumed=False)
    assert nth_map([shown, unmeasured, measured, last], 1) == unmeasured
    assert _after([shown, unmeasured, measured, last], 0) == 1


def test_a_map_without_int8_layers_follows_one_with_them():
    """Whatever their predicted losses; in its place by time, and after it less is lost."""
    int8, less, least = (
        dataclasses.replace(_map(s), dtypes=("int8",), layers=(0,), predicted_loss=loss)
        for s, loss in ((1.0, 0.1), (2.0, 0.05), (4.0, 0.02))
    )
    halves = dataclasses.replace(_map(3.0), dtypes=("bfloat16",), layers=(0,), predicted_loss=0.2)
    last = dataclasses.replace(_map(9.0, layers=()), dtypes=(), predicted_loss=0.0)
    maps = [int8, less, halves, least, last]
    assert [nth_map(maps, n) for n in range(5)] == [int8, less, halves, least, last]
    broken = dataclasses.replace(halves, holds=False)
    assert [nth_map([*maps[:2], broken, *maps[3:]], n) for n in range(3)] == [int8, less, least]


def test_guesses_have_numbers_below_0():
    """The fastest has the least; slower ones than the chosen map are none."""
    maps = _losing({1.0: 0.1, 2.0: 0.05, 9.0: 0.0})
    guesses = [
        dataclasses.replace(_map(s, holds=False, layers=(0,)), predicted_loss=0.2, is_guess=True)
        for s in (0.9, 0.8, 1.5)
    ]
    found = numbered([*maps, *guesses])
    assert {n: m.predicted_s for n, m in found.items()} == {
        -2: 0.8,
        -1: 0.9,
        0: 1.0,
        1: 2.0,
        2: 9.0,
    }
    assert [nth_map([*maps, *guesses], n).predicted_s for n in (-9, -1, 9)] == [0.8, 0.9, 9.0]
    assert fastest([*maps, *guesses]).predicted_s == 1.0
    assert number_after([*maps, *guesses], -2, 0.012, 0.01) == 0


def test_a_change_of_dtype_costs_its_bytes(make_model):
    """``a -> Relu -> b``, and ``a + b -> c``: three edges; 64 elements each."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a0"], "a"),
        helper.make_node("Relu", ["a0"], ["a1"], "relu"),
        helper.make_node("Conv", ["a1", "w"], ["b0"], "b"),
        helper.make_node("Add", ["a1", "b0"], ["s"], "sum"),
        helper.make_node("Conv", ["s", "w"], ["y"], "c"),
    ]
    tensor = ("float32", (1, 4, 4, 4))
    model = make_model(nodes, {"x": tensor}, {"y": tensor}, {"w": np.ones((4, 4, 1, 1), "float32")})
    import onnx

    graph = Graph(onnx.shape_inference.infer_shapes(model).graph)
    choices = [LayerChoice(i, name, DTYPES, (1.0,) * 3, (0.0,) * 3) for i, name in enumerate("abc")]
    changes = dtype_changes(graph, choices, bandwidth=64.0)
    assert set(changes) == {(0, 1), (0, 2), (1, 2)}
    for table in changes.values():
        assert table.tolist() == [[0, 5, 6], [5, 0, 3], [6, 3, 0]]


@settings(deadline=None, max_examples=15)
@given(
    st.lists(
        st.tuples(st.floats(0.1, 1), st.floats(0.1, 1), st.floats(1e-4, 1), st.floats(1e-4, 1)),
        min_size=1,
        max_size=5,
    ),
    st.floats(0, 0.3),
)
def test_no_other_choice_is_both_faster_and_more_accurate(layers, change):
    choices = [
        LayerChoice(i, f"n{i}", DTYPES, (1.0, first, second), (0.0, one, two))
        for i, (first, second, one, two) in enumerate(layers)
    ]
    table = change * (1 - np.eye(3))
    changes = {(i, i + 1): table for i in range(len(layers) - 1)}

    def point(choice):
        seconds = sum(c.seconds[at] for c, at in zip(choices, choice, strict=True))
        seconds += sum(table[a, b] for a, b in itertools.pairwise(choice))
        return seconds, sum(c.errors[at] for c, at in zip(choices, choice, strict=True))

    # float32 stands behind the 16-bit float, except for the whole model.
    points = [point(c) for c in itertools.product((1, 2), repeat=len(layers))]
    found = [point(c) for c in pareto_choices(choices, changes)]
    assert found[0][0] == pytest.approx(min(seconds for seconds, _ in points))
    assert found[-1] == point([0] * len(layers))
    for seconds, error in found[:-1]:
        assert not any(s < seconds - 1e-9 and e < error - 1e-9 for s, e in points)
    assert all(0 not in choice for choice in pareto_choices(choices, changes)[:-1])
    errors = [error for _, error in found]
    for fast, accurate in itertools.pairwise(pareto_choices(choices, changes)):
        finer = [point(c) for c in between(fast, accurate, choices, changes)]
        assert all(seconds < point(accurate)[0] for seconds, _ in finer)
    assert all(a >= b - 1e-9 for a, b in itertools.pairwise(errors))


def test_a_layer_that_overflows_keeps_float32():
    choices = [
        LayerChoice(0, "n0", ("float32", "float16"), (1.0, 0.5), (0.0, float("inf"))),
        LayerChoice(1, "n1", ("float32", "float16"), (1.0, 0.5), (0.0, 1e-6)),
    ]
    found = pareto_choices(choices, {})
    assert (0, 1) in found
    assert found[-1] == (0, 0)


def test_a_model_without_layers_has_one_choice():
    assert pareto_choices([], {}) == [()]


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((), "float32"),
        (("bfloat16",), "bfloat16"),
        (("bfloat16", "int8"), "int8"),
        (("float16", "bfloat16"), "bfloat16"),
    ],
)
def test_dtype_of_the_whole_model(dtypes, expected):
    assert whole_model_dtype(dtypes) == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("sapphirerapids", ("int8", "bfloat16")),
        ("cortex-a76", ("int8", "float16")),
        ("skylake-avx512", ("int8",)),
        ("nvidia-h200", ("int8", "float16")),
    ],
)
def test_dtypes_that_pay_on_a_target(target, expected):
    assert mixed_dtypes(resolve_target(target, 2)) == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("sapphirerapids", ("int8", "bfloat16", "float16")),
        ("znver4", ("int8", "bfloat16", "float16")),  # converts vectors of float16
        ("neoverse-v2", ("int8", "bfloat16", "float16")),
        ("cortex-a76", ("int8", "float16")),
        ("skylake-avx512", ("int8",)),
        ("nvidia-h200", ("int8", "float16")),
    ],
)
def test_a_layer_may_have_float16_where_bfloat16_is_the_16_bit_float(target, expected):
    assert layer_dtypes(resolve_target(target, 2)) == expected


def test_fastest_map_that_holds():
    maps = [_map(3.0), _map(1.0, holds=False), _map(2.0, layers=(0,), dtypes=("int8",))]
    assert fastest(maps) is maps[2]
    assert maps[2].by_layer == {0: "int8"}


def test_emulated_model_has_each_layer_in_its_dtype(network, batches):
    proto = network.model
    quantizer = Quantizer(proto, collect_ranges(proto, batches, Scheme()), Scheme())
    names = {"stem": "int8", "left": "int8", "right": "float32", "gated": "bfloat16"}
    model = emulated(proto, quantizer, {**names, "deep": "float32", "fc": "bfloat16"})
    made_by = {output: node.op_type for node in model.graph.node for output in node.output}
    reads = {n.name: made_by.get(n.input[0]) for n in model.graph.node if n.op_type == "Conv"}
    reads |= {n.name: made_by.get(n.input[0]) for n in model.graph.node if n.op_type == "Gemm"}
    assert reads["stem"] == reads["left"] == "DequantizeLinear"
    assert reads["gated"] == reads["fc"] == "Cast"
    assert reads["right"] not in ("DequantizeLinear", "Cast")
    assert reads["deep"] not in ("DequantizeLinear", "Cast")


def test_the_bar_decides_between_int8_and_bfloat16(digits, monkeypatch):
    """A judge that lets five layers be int8: others become bfloat16."""
    prepared, calibration, _ = digits
    judged = []

    def judge(self, model, dtype, deadline, **_):
        made_by = {output: node.op_type for node in model.graph.node for output in node.output}
        integer = {
            node.name
            for node in model.graph.node
            if node.op_type in ("Conv", "Gemm") and made_by.get(node.input[0]) == "DequantizeLinear"
        }
        judged.append(integer)
        holds = len(integer) <= 5
        accuracy = Accuracy("fidelity", 0.99, 1.0, None, 0.99, 0.0, 4)
        return JointVerdict(accuracy, holds)

    monkeypatch.setattr("tvmopt.quantize.joint.Judge.__call__", judge)
    found = sensitivity(
        prepared, calibration, dtypes=("int8", "bfloat16"), layer_dtypes=True,
        target=resolve_target("sapphirerapids", 2), time_limit_s=60, samples=20,
    )  # fmt: skip
    chosen = found.chosen_map
    assert 1 <= chosen.dtypes.count("int8") <= 5
    assert "bfloat16" in chosen.dtypes
    # all layers in int8, the fastest choice, are measured once: before the choice of dtypes
    assert len(judged[0]) == max(map(len, judged)) > len(judged[2])
    assert found.skip_sets == ()
    again = Sensitivity.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found


def test_maps_of_the_digits_classifier_are_measured(digits, tmp_path):
    prepared, calibration, _ = digits
    start = time.monotonic()
    found = sensitivity(
        prepared, calibration, dtypes=("int8", "bfloat16"), layer_dtypes=True,
        target=resolve_target("sapphirerapids", 2), time_limit_s=60, samples=100,
    )  # fmt: skip
    assert time.monotonic() - start < 60
    chosen = found.chosen_map
    assert chosen.samples >= 100
    assert chosen.cosine > 0.99
    assert len(chosen.layers) >= 6  # of 7
    assert chosen.predicted_s < max(m.predicted_s for m in found.dtype_maps)
    assert found.plot(tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    kept = {(row["index"], row["dtype"]) for row in found.rows() if not row["proposed_skip"]}
    assert kept == set(chosen.by_layer.items())


def test_skip_sets_are_no_map():
    found = Sensitivity((), (), (), 1, 1.0, {})
    with pytest.raises(ConfigError, match="dtype=auto needs an analysis with layer_dtypes, but"):
        _ = found.chosen_map


@pytest.mark.parametrize(
    ("drop", "samples", "holds"), [(0.005, 8, True), (0.02, 8, False), (0.0, 3, False)]
)
def test_16_bit_floats_hold_unless_their_drop_says_otherwise(make_model, drop, samples, holds):
    """Few samples leave 1 % open; all of them must have been measured."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "a")]
    tensor = ("float32", (1, 4, 4, 4))
    model = make_model(nodes, {"x": tensor}, {"y": tensor}, {"w": np.ones((4, 4, 1, 1), "float32")})
    accuracy = Accuracy("fidelity", 1 - drop, 1.0, 1 - drop, 0.99, 0.1, samples)
    setting = Setting(model, Graph(model.graph), Scheme(), None)
    batches = [Batch({}, None, 1)] * 8

    def judge(*args, **kwargs):
        return JointVerdict(accuracy, False)

    judge.by_r2 = False
    analysis = Analysis(setting, [], {}, DTYPES[1:], batches, Bar(0.01), judge, None)
    choices = [LayerChoice(0, "a", ("float32", "bfloat16"), (1.0, 0.5), (0.0, 1e-4))]
    measure = MapMeasurement(analysis, choices, {}, {})
    measure.accept_halves(0.0)
    [plain, found] = measure.found
    assert (found.dtypes, found.holds) == (("bfloat16",), holds)
    assert fastest(measure.found) is (found if holds else plain)
