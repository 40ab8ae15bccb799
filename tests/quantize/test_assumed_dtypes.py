"""Tests of the choice of a dtype for each layer within a time limit, by a fake clock."""

from __future__ import annotations

import dataclasses
import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.evaluate.dataset import Batch
from tvmopt.quantize import Sensitivity
from tvmopt.quantize.analysis import Analysis
from tvmopt.quantize.analysis_time import phase_deadlines
from tvmopt.quantize.bar import Bar
from tvmopt.quantize.dtype_map import NUMBERED_MAPS, DtypeMap, fastest, nth_map, numbered
from tvmopt.quantize.extrapolated_loss import ExtrapolatedLoss, measured_excess
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.joint import JointVerdict
from tvmopt.quantize.layer_dtypes import choose_layer_dtypes
from tvmopt.quantize.layer_times import LayerTimes
from tvmopt.quantize.layer_timing import in_timing_order
from tvmopt.quantize.probe import Setting
from tvmopt.quantize.ranges import collect_ranges
from tvmopt.quantize.report import LayerCost
from tvmopt.quantize.scheme import Scheme
from tvmopt.stages.sensitivity import _map_line

SECONDS = {"float32": 1.0, "int8": 0.25, "bfloat16": 0.5, "float16": 0.8}  # of a layer
COST_S = 5.0  # of a measurement of a map, by the fake clock
SAMPLES = 40  # of the analysis


def _cost(index, dtype, error):
    return LayerCost(index, f"n{index}", "Conv", dtype, "measured", error=error)


@dataclasses.dataclass
class Result:
    """What was chosen, all maps, and the numbers of int8 layers as they were measured.

    ``few`` has the numbers that were measured on a few samples.
    """

    chosen: DtypeMap
    maps: list
    judged: list
    few: list


@pytest.fixture
def choose(make_model, monkeypatch):
    """Choose among layers; the drop is a function of the number of int8 layers.

    A measurement takes 5 s of a clock that nothing else moves.
    """

    def run(
        drop, known=None, *, errors=(0.4, 0.3, 0.2, 0.1), halves=True, limit=1e3, broken=(),
        verdict=_verdict, of_few=None, float16=False, by_r2=False,
    ):  # fmt: skip
        count, now = len(errors), [0.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        tensor = ("float32", (1, 4, 4, 4))
        nodes = [
            helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"x{i + 1}"], f"n{i}")
            for i in range(count)
        ]
        weights = {f"w{i}": np.ones((4, 4, 1, 1), "float32") for i in range(count)}
        model = make_model(nodes, {"x0": tensor}, {f"x{count}": tensor}, weights)
        scheme = Scheme()
        ranges = collect_ranges(model, [{"x0": np.ones((1, 4, 4, 4), "float32")}], scheme)
        judged, few = [], []

        def judge(converted, dtype, deadline, *, most=None, **limits):
            made_by = {o: n.op_type for n in converted.graph.node for o in n.output}
            convs = [n for n in converted.graph.node if n.op_type == "Conv"]
            integers = sum(made_by.get(n.input[0]) == "DequantizeLinear" for n in convs)
            if most is not None:
                few.append(integers)
                bad = integers in broken
                if of_few is not None:
                    return JointVerdict(
                        _accuracy(of_few, samples=4), False, drops=dict.fromkeys(WORST, of_few)
                    )
                return JointVerdict(_accuracy(1.0 if bad else 0.0, 0.1 if bad else 0.995), False)
            judged.append(integers)
            now[0] += COST_S
            return verdict(drop(integers))

        setting = Setting(model, Graph(model.graph), scheme, ranges)
        batches = [Batch({}, None, 1)] * SAMPLES
        dtypes = ("int8", "bfloat16") if halves else ("int8",)
        dtypes += ("float16",) if float16 else ()
        judge.by_r2 = by_r2
        analysis = Analysis(setting, [], {}, dtypes, batches, Bar(0.01), judge, None)
        costs = {}
        for i, error in enumerate(errors):
            costs[i, "int8"] = _cost(i, "int8", error)
            if halves:
                costs[i, "bfloat16"] = _cost(i, "bfloat16", 1e-6)
            if float16:
                costs[i, "float16"] = _cost(i, "float16", 1e-8)
        seconds = {(i, dtype): s for i in range(count) for dtype, s in SECONDS.items()}
        times = LayerTimes(seconds, frozenset(range(count)), 1e12)
        maps = choose_layer_dtypes(analysis, costs, times, limit, known, COST_S)
        return Result(fastest(maps), maps, judged, few)

    return run


def _accuracy(drop, cosine=0.9, samples=SAMPLES):
    return Accuracy("fidelity", 1 - drop, 1.0, None, cosine, 0.0, samples)


def _verdict(drop, samples=SAMPLES):
    return JointVerdict(_accuracy(drop, samples=samples), drop <= 0.01)


def _undecided(drop):
    """Return a verdict of samples that are too few to show a drop below 0.006."""
    if drop + 0.006 <= 0.01:
        return _verdict(drop)
    likely = drop + 0.003 <= 0.01
    return JointVerdict(
        _accuracy(drop), False, most_drop=drop + 0.006, is_likely=likely,
        samples_to_decide=300 if likely else 0,
    )  # fmt: skip


def as_predicted(integers):
    """Return the drop of so many int8 layers, which lose 0.4, 0.3, 0.2 and 0.1 of 0.02."""
    return {4: 0.02, 3: 0.012, 2: 0.006, 1: 0.002, 0: 0.0}[integers]


ALONE = {"int8": _verdict(0.02), "bfloat16": _verdict(0.0)}
WORST = range(4)
MANY = tuple(0.01 * 1.2**i for i in range(24))  # errors of layers; the total is 3.92


def by_root(integers, largest=0.1):
    """Return a drop that grows with the root of the predicted loss: 0.1 for all 24 layers."""
    return largest * (sum(sorted(MANY)[:integers]) / sum(MANY)) ** 0.5


def test_what_one_dtype_loses_is_not_measured_again(choose):
    found = choose(as_predicted, ALONE)
    assert found.chosen.dtypes.count("int8") == 2 and found.chosen.dtypes.count("bfloat16") == 2
    assert 4 not in found.judged and 0 not in found.judged


def test_no_map_is_measured_that_loses_less_than_16_bits_that_hold(choose):
    """Every map with an int8 layer misses; all layers in bfloat16 are known to hold."""
    found = choose(lambda n: 0.02 if n else 0.0, ALONE)
    assert set(found.chosen.dtypes) == {"bfloat16"} and found.chosen.holds
    assert 0 not in found.judged and len(set(found.judged)) == len(found.judged)


def test_the_first_measurement_is_where_the_drop_is_expected_to_hold(choose):
    assert choose(as_predicted, ALONE).judged[0] == 2


def test_without_time_a_map_is_assumed_from_what_is_known(choose):
    """int8 alone loses twice the allowed drop; by the careful exponent 1/8 of its loss is left."""
    found = choose(as_predicted, ALONE, limit=0.0)
    assert found.judged == [] and found.few == [1]
    assert found.chosen.is_assumed and not found.chosen.holds
    assert found.chosen.dtypes.count("int8") == 1 and found.chosen.dtypes.count("bfloat16") == 3


def test_an_assumed_map_that_is_broken_is_not_chosen(choose):
    """Without another low-precision map, all layers in 16 bits are; or float32."""
    found = choose(as_predicted, ALONE, limit=0.0, broken=(1, 2, 3))
    assert set(found.chosen.dtypes) == {"bfloat16"} and found.chosen.holds
    alone = {"int8": ALONE["int8"]}
    found = choose(as_predicted, alone, halves=False, limit=0.0, broken=(1, 2, 3))
    assert found.few and found.chosen.layers == ()


@pytest.mark.parametrize(("of_few", "is_assumed"), [(0.006, True), (0.008, False)])
def test_by_r2_the_drop_of_few_samples_decides_with_a_margin(choose, of_few, is_assumed):
    """Weights and biases were fitted to these samples, however close the outputs are."""
    alone = {"int8": _verdict(0.04), "bfloat16": _verdict(0.001)}
    found = choose(lambda n: 0.04, alone, errors=MANY, limit=4, of_few=of_few, by_r2=True)
    assert found.few and found.chosen.is_assumed is is_assumed


@pytest.mark.parametrize(("of_few", "is_assumed"), [(0.03, True), (0.05, False)])
def test_the_drop_of_the_worst_samples_stands_for_that_of_all(choose, of_few, is_assumed):
    """All layers in int8 lose 0.08 of the worst four samples, and 0.02 of all."""
    drops = {at: 0.08 if at in WORST else 0.48 / 36 for at in range(40)}
    alone = {**ALONE, "int8": dataclasses.replace(_verdict(0.02), drops=drops)}
    found = choose(as_predicted, alone, limit=0.0, of_few=of_few)
    assert found.chosen.is_assumed is is_assumed
    assert set(found.chosen.dtypes) == ({"int8", "bfloat16"} if is_assumed else {"bfloat16"})


def test_a_safer_map_follows_a_broken_one(choose):
    alone = {"int8": _verdict(0.03)}
    [first] = choose(by_root, alone, errors=MANY, halves=False, limit=0.0).few
    found = choose(by_root, alone, errors=MANY, halves=False, limit=0.0, broken=(first,))
    assert found.few[0] == first > found.few[1] == len(found.chosen.layers) > 0
    assert by_root(first, 0.03) < 0.01


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("measurements", [0, 1, 2, 3, 4, 6])
def test_any_limit_gives_a_low_precision_map_within_the_drop(choose, halves, measurements):
    """The drop grows faster than the first extrapolation supposes; half a measurement is left."""
    alone = {"int8": _verdict(0.1)}
    limit = COST_S * (measurements + 0.5)
    found = choose(by_root, alone, errors=MANY, halves=halves, limit=limit)
    integers = found.chosen.dtypes.count("int8")
    assert len(found.judged) <= measurements
    assert integers > 0 and by_root(integers) <= 0.01
    assert found.chosen.is_assumed is not found.chosen.holds
    assert len(found.few) <= 1 and (not found.few or found.few[0] == integers)


@pytest.mark.parametrize("measurements", [2, 3, 4, 6])
def test_noise_of_few_samples_leaves_most_layers_in_int8(choose, measurements):
    """Any map, also of 16-bit floats, has a drop of 0.005 that 0.006 of noise hides."""
    alone = {"int8": _undecided(0.014), "bfloat16": _undecided(0.005)}
    limit = COST_S * (measurements + 0.5)
    found = choose(
        lambda n: 0.005 + 0.009 * (n / len(MANY)) ** 4, alone, errors=MANY, limit=limit,
        verdict=_undecided,
    )  # fmt: skip
    chosen = found.chosen
    assert chosen.is_undecided and not chosen.holds and not chosen.is_assumed
    assert chosen.samples_to_decide == 300 and chosen.drop <= 0.007
    assert chosen.dtypes.count("int8") > len(MANY) / 3 and found.few == []
    assert len(found.judged) <= measurements


def test_all_layers_in_int8_are_enough_where_no_samples_can_show_more(choose):
    alone = {"int8": _undecided(0.006), "bfloat16": _undecided(0.005)}
    found = choose(lambda n: 0.006, alone, errors=MANY, verdict=_undecided)
    assert len(found.judged) == NUMBERED_MAPS - 1  # of the maps that would follow it
    assert set(found.chosen.dtypes) == {"int8"}
    assert found.chosen.is_undecided


def test_no_slower_16_bit_float_is_assumed_where_the_faster_one_keeps_the_accuracy(choose):
    """The samples are too few to show it, and no time is left to measure mixes of the two."""
    alone = {"int8": _undecided(0.03), "bfloat16": _undecided(0.008)}
    accuracy = dataclasses.replace(alone["bfloat16"].accuracy, samples=40)
    alone["bfloat16"] = dataclasses.replace(alone["bfloat16"], accuracy=accuracy)
    found = choose(lambda n: 0.03, alone, errors=MANY, limit=4, verdict=_undecided, float16=True)
    assert set(found.chosen.dtypes) == {"bfloat16"}


def test_maps_that_would_follow_a_refused_one_need_not_be_shown(choose):
    """Evaluation judges them, so a drop within the limit is enough; a larger one is not."""
    alone = {"int8": _undecided(0.006), "bfloat16": _undecided(0.005)}
    for drop, following in ((0.009, 2), (0.012, 0)):
        found = choose(lambda n, drop=drop: drop, alone, errors=MANY, verdict=_undecided)
        maps = [nth_map(found.maps, n) for n in (1, 2)]
        assert sum("int8" in m.dtypes for m in maps) == following
        assert found.chosen == nth_map(found.maps, 0) and "int8" in found.chosen.dtypes


def test_maps_that_would_follow_are_not_measured_where_time_is_short(choose):
    alone = {"int8": _verdict(0.005), "bfloat16": _verdict(0.001)}
    found = choose(lambda n: 0.005, alone, errors=MANY, limit=4)
    assert set(found.chosen.dtypes) == {"int8"} and found.judged == []
    first, second = (nth_map(found.maps, n) for n in (1, 2))
    for one, before in ((first, found.chosen), (second, first)):
        assert one.is_undecided and one.samples == 0 and not one.holds
        assert 0 < one.predicted_loss <= 0.8 * before.predicted_loss
        assert one.predicted_s > before.predicted_s


def test_a_map_that_would_follow_does_not_take_the_place_of_the_undecided_one(choose):
    """The one before is measured, and hardly faster."""
    alone = {"int8": _undecided(0.006), "bfloat16": _undecided(0.005)}
    found = choose(lambda n: 0.006, alone, errors=MANY, limit=1, verdict=_undecided)
    assert set(found.chosen.dtypes) == {"int8"} and found.chosen.drop == 0.006
    following = nth_map(found.maps, 1)
    assert following.samples == 0 and following.predicted_s > found.chosen.predicted_s


def test_a_map_that_is_shown_is_sought_where_samples_can_show_one(choose):
    """All layers in bfloat16 are shown; a map that is only likely to hold does not count then."""
    alone = {"int8": _undecided(0.02), "bfloat16": _undecided(0.0)}
    found = choose(lambda n: by_root(n, 0.02), alone, errors=MANY, verdict=_undecided)
    assert any(m.holds and "int8" in m.dtypes for m in found.maps)
    assert not any(m.is_undecided for m in found.maps)


def test_an_undecided_map_is_chosen_where_it_is_clearly_faster():
    shown = DtypeMap((), (), 1.0, 0.0, 1.0, None, 0.0, 9, True)
    for seconds, is_chosen in ((0.95, False), (0.85, True)):
        undecided = dataclasses.replace(
            shown, predicted_s=seconds, holds=False, is_undecided=True, samples_to_decide=70
        )
        assert fastest([shown, undecided]) is (undecided if is_chosen else shown)


def test_after_a_near_miss_the_next_map_is_near(choose):
    """The first map loses 0.0107, by an aim at 0.7 of 0.01 and an exponent of 1; it is 0.6."""

    def drop(integers):
        return 0.025 * (sum(sorted(MANY)[:integers]) / sum(MANY)) ** 0.6

    alone = {"int8": _verdict(0.025), "bfloat16": _verdict(0.0)}
    found = choose(drop, alone, errors=MANY, limit=2.5 * COST_S)
    first, second = found.judged
    assert 0.01 < drop(first) < 0.0115
    assert first - 3 <= second < first and drop(second) <= 0.01 and found.chosen.holds


def test_no_map_is_assumed_where_time_does_not_end(choose):
    """Every map with an int8 layer misses the bar."""
    found = choose(lambda n: 0.02 if n else 0.0, {"int8": _verdict(0.02)}, halves=False)
    assert found.chosen.layers == () and found.few == []


@given(st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0, 1e4))
def test_a_third_of_the_time_or_three_measurements_are_left_for_maps(now, left, measurement):
    deadline = now + left
    phases = phase_deadlines(now, deadline, measurement)
    left, reserve = deadline - now, deadline - phases.errors
    assert now - 1e-6 <= phases.timing <= now + left / 3 + 1e-6
    assert reserve >= min(left / 2, 3 * measurement) - 1e-6
    # Where timing takes its share, errors have the other one; else more is left for the maps.
    assert phases.further_errors(phases.timing) == pytest.approx(phases.errors, abs=1e-6)
    assert phases.further_errors(now) == pytest.approx(phases.timing, abs=1e-6)
    assert phases.further_errors(phases.errors + 1e6) == phases.errors


@given(
    st.floats(0.5, 1.0), st.floats(1e-4, 1.0), st.floats(3.0, 1e3), st.floats(0.1, 0.7),
    st.floats(0.1, 1.0),
)  # fmt: skip
def test_two_missed_maps_give_the_exponent(exponent, loss, excess, smaller, part):
    scale, other = ExtrapolatedLoss(), excess * smaller**exponent
    assert scale.allowed(part) is None
    scale.add(loss, excess)
    assert scale.allowed(part) == pytest.approx(loss * part / excess)
    assert scale.allowed(part, careful=True) == pytest.approx(loss * (part / excess) ** 2)
    if other > 1:
        scale.add(loss * smaller, other)
        expected = loss * (part / excess) ** (1 / exponent)
        assert scale.allowed(part) == pytest.approx(expected)
        careful = loss * smaller * (part / other) ** 2
        assert scale.allowed(part, careful=True) == pytest.approx(careful)


@given(st.floats(0.3, 3.0), st.floats(1.05, 9.0), st.floats(0.1, 0.9), st.floats(0.5, 1.0))
def test_a_map_within_the_bar_and_one_that_misses_it_give_the_exponent(
    exponent, excess, smaller, part
):
    """The excess is a power of the predicted loss; a map far within the bar says nothing new."""
    held = excess * smaller**exponent
    scale = ExtrapolatedLoss()
    scale.add(1.0, excess)
    scale.add(smaller, held)
    scale.add(1e-3 * smaller, 1e-9)
    if held <= 1:
        expected = max(smaller, (part / excess) ** (1 / exponent))
        assert scale.allowed(part) == pytest.approx(expected)
        assert scale.is_bracketed is (excess < 2 * held)


def test_excess_over_the_bar():
    """int8 may lose 0.003 of the cosine."""
    bar = Bar(0.01)
    far = JointVerdict(_accuracy(0.05, 0.97), False)
    assert measured_excess(far, bar, "int8") == pytest.approx(5)
    no_drop = JointVerdict(_accuracy(0.0, 0.97), False)
    assert measured_excess(no_drop, bar, "int8") == pytest.approx(10)
    by_scores = dataclasses.replace(no_drop, expected_drop=0.03)
    assert measured_excess(by_scores, bar, "int8") == pytest.approx(3)
    undecided = dataclasses.replace(no_drop, most_drop=0.02)  # the interval misses, not the drop
    assert measured_excess(undecided, bar, "int8") == pytest.approx(2)
    found = measured_excess(undecided, bar, "int8", can_be_shown=False)
    assert found == pytest.approx(2 / 1.96)  # one standard error
    likely = dataclasses.replace(undecided, is_likely=True)  # the samples miss, no loss does
    assert measured_excess(likely, bar, "int8", can_be_shown=False) <= 1
    assert measured_excess(likely, bar, "int8") == pytest.approx(2)
    assert measured_excess(JointVerdict(_accuracy(0.0, 0.97), True), bar, "int8") <= 1
    assert measured_excess(no_drop, Bar(0.0), "int8") == pytest.approx(10)


def test_one_shape_of_each_operator_is_timed_first(make_model):
    """Three equal layers come before a larger one; a grouped convolution before its second."""
    tensor = ("float32", (1, 4, 4, 4))
    groups = {"wide": 1, "a": 1, "b": 1, "c": 1, "grouped": 4}
    nodes = [
        helper.make_node("Conv", ["x", f"{name}.w"], [f"{name}.y"], name, group=group)
        for name, group in groups.items()
    ]
    shapes = dict.fromkeys("abc", (4, 4, 1, 1)) | {"wide": (4, 4, 3, 3), "grouped": (4, 1, 1, 1)}
    weights = {f"{name}.w": np.ones(shapes[name], "float32") for name in groups}
    model = make_model(nodes, {"x": tensor}, {f"{n}.y": tensor for n in groups}, weights)
    graph = Graph(model.graph)
    saved = {"wide": 2.0, "a": 1.0, "b": 1.0, "c": 1.0, "grouped": 0.1}
    costs = [
        LayerCost(i, name, "Conv", "int8", "estimated", saved_s=s)
        for i, (name, s) in enumerate(saved.items())
    ]
    costs.append(LayerCost(9, "none", "MatMul", "int8", "not convertible"))
    found = in_timing_order(graph, {node.name: node for node in nodes}, costs)
    assert [cost.name for cost in found] == ["a", "b", "c", "grouped", "wide"]


def test_an_assumed_map_is_kept_and_said():
    plain = DtypeMap((), (), 2.0, 0.0, 1.0, None, 0.0, 0, True)
    assumed = DtypeMap((0,), ("int8",), 1.0, 1e-4, 0.999, None, 0.0, 4, False, is_assumed=True)
    costs = (_cost(0, "int8", 0.1), _cost(1, "int8", 0.1))
    found = Sensitivity(("int8",), costs, (), 16, 1.0, {}, (), (plain, assumed))
    again = Sensitivity.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.chosen_map == assumed
    assert _map_line(found) == (
        "dtypes: of 2 layers 1 in int8, 1 in float32; time ended before a map was shown to keep "
        "the accuracy: this one is chosen by its predicted loss and 4 samples"
    )


def test_an_undecided_map_is_kept_and_said():
    plain = DtypeMap((), (), 2.0, 0.0, 1.0, None, 0.0, 0, True)
    undecided = dataclasses.replace(
        plain, layers=(0,), dtypes=("int8",), predicted_s=1.0, drop=0.004, samples=64, holds=False,
        is_undecided=True, samples_to_decide=98,
    )  # fmt: skip
    costs = (_cost(0, "int8", 0.1), _cost(1, "int8", 0.1))
    found = Sensitivity(("int8",), costs, (), 64, 1.0, {}, (), (plain, undecided))
    again = Sensitivity.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.chosen_map == undecided
    assert _map_line(found) == (
        "dtypes: of 2 layers 1 in int8, 1 in float32; undecided: 64 samples show a drop of 0.004, "
        "too few to tell with 95 % confidence; 98 would"
    )
    unknown = dataclasses.replace(undecided, samples_to_decide=0)
    assert _map_line(dataclasses.replace(found, dtype_maps=(plain, unknown))) == (
        "dtypes: of 2 layers 1 in int8, 1 in float32; undecided: 64 samples show a drop of 0.004, "
        "too few to tell with 95 % confidence"
    )
    unmeasured = dataclasses.replace(unknown, drop=0.0, samples=0)
    assert _map_line(dataclasses.replace(found, dtype_maps=(plain, unmeasured))) == (
        "dtypes: of 2 layers 1 in int8, 1 in float32; time ended before this map was measured: it "
        "is chosen by its predicted loss"
    )


def test_faster_maps_are_kept_where_time_ends_before_they_are_measured(choose):
    """All layers in bfloat16 are chosen. Few samples, the worst, do not tell what a map loses."""
    alone = {"int8": _verdict(0.03), "bfloat16": _verdict(0.001)}
    found = choose(lambda n: 0.03, alone, errors=MANY, limit=1, of_few=0.03)
    assert "int8" not in found.chosen.dtypes
    guesses = [m for m in numbered(found.maps).values() if m.is_guess]
    assert guesses and all("int8" in m.dtypes and m.samples < SAMPLES for m in guesses)
    assert not any(m.can_be_chosen for m in guesses)
    seconds = [m.predicted_s for m in guesses]
    assert seconds == sorted(seconds) and seconds[-1] < found.chosen.predicted_s
    losses = [m.predicted_loss for m in guesses]
    assert losses == sorted(losses, reverse=True)
    [fastest_one] = [m for m in found.maps if set(m.dtypes) == {"int8"}]
    assert losses[0] < fastest_one.predicted_loss


@pytest.mark.parametrize("near", [0.008, 0.013])
def test_a_measured_map_that_is_not_shown_is_a_guess(choose, near):
    """Its drop is at most 1.5 of the limit; a map with a larger drop is no guess."""
    alone = {"int8": _verdict(0.03), "bfloat16": _verdict(0.001)}
    missed = choose(
        lambda n: near if n < len(MANY) / 2 else 0.02, alone, errors=MANY,
        verdict=lambda drop: dataclasses.replace(_verdict(drop), holds=False),
    )  # fmt: skip
    measured = [m for m in missed.maps if m.samples and "int8" in m.dtypes]
    assert any(m.is_guess for m in measured)
    assert all(m.is_guess <= (m.drop <= 0.015) for m in measured)


@pytest.mark.parametrize(("drop", "is_guess"), [(0.029, True), (0.031, False)])
def test_the_worst_samples_do_not_tell_what_all_lose(choose, drop, is_guess):
    """Time ended after 20 of 40 samples, the worst: the others may lose nothing."""
    alone = {"int8": _verdict(0.03), "bfloat16": _verdict(0.001)}
    missed = choose(
        lambda n: drop, alone, errors=MANY,
        verdict=lambda drop: dataclasses.replace(_verdict(drop, SAMPLES // 2), is_cut=True),
    )  # fmt: skip
    cut = [m for m in missed.maps if m.samples == SAMPLES // 2]
    assert cut and all(m.is_guess == is_guess for m in cut)


def test_the_drop_of_a_map_is_the_expected_one_where_that_decides(choose):
    """As in evaluation: rows that were counted of few samples say less."""
    alone = {"int8": _verdict(0.03), "bfloat16": _verdict(0.001)}
    found = choose(
        lambda n: 0.02, alone, errors=MANY,
        verdict=lambda drop: dataclasses.replace(_verdict(drop), expected_drop=0.004, holds=False),
    )  # fmt: skip
    assert {m.drop for m in found.maps if m.samples and "int8" in m.dtypes} >= {0.004}
