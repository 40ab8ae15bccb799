"""Tests of the sensitivity analysis: it finds the fragile layer and proposes a skip set."""

import csv
import dataclasses
import json
import math
import time

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError
from tvmopt.evaluate.accuracy import AccuracyMeter
from tvmopt.evaluate.dataset import Dataset
from tvmopt.frontend import layer_table
from tvmopt.frontend.reference import Reference, input_specs
from tvmopt.quantize import (
    Scheme,
    Sensitivity,
    collect_ranges,
    quantize_model,
    sensitivity,
    single_layers,
)
from tvmopt.quantize import sensitivity as sensitivity_function
from tvmopt.quantize.downstream import Recording
from tvmopt.quantize.report import LayerCost, SkipSet, ranked

ANCHORS = ["stem", "left", "right", "gated", "deep", "fc"]
module = __import__(sensitivity_function.__module__, fromlist=["_"])


def _data(model, count, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 1, 3, 8, 8)).astype(np.float32)
    return Dataset(input_specs(model), {"x": x}, None, stacked=True)


@pytest.fixture(scope="module")
def fragile(network):
    """Return ``network`` with huge weights on one input channel of ``right`` that is nearly zero.

    Scales are per output channel, so that all other weights of the layer are rounded away.
    """
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    constants = {i.name: i for i in model.graph.initializer}
    stem = numpy_helper.to_array(constants["left.b"]).copy()
    weight = numpy_helper.to_array(constants["right.w"]).copy()
    # Channel 0 of "a" is always zero: its accumulator is negative, and Relu clips it.
    stem[0] = -1e3
    weight[:, 0] = 500.0
    constants["left.b"].CopyFrom(numpy_helper.from_array(stem, "left.b"))
    constants["right.w"].CopyFrom(numpy_helper.from_array(weight, "right.w"))
    return model


@pytest.fixture(scope="module")
def analysis(fragile):
    # max_drop=0: the cosine decides, since no class changes.
    return sensitivity(fragile, _data(fragile, 12, 0), samples=12, time_limit_s=60, max_drop=0.0)


def test_the_layer_made_fragile_is_found_and_skipped(fragile, analysis):
    costs = {cost.name: cost for cost in analysis.of("int8")}
    assert list(costs) == ANCHORS
    assert all(cost.source == "measured" and cost.samples == 8 for cost in costs.values())
    assert {cost.samples for cost in analysis.of("float16")} == {3}
    worst = max(costs.values(), key=lambda cost: cost.error)
    assert worst.name == "right"
    assert worst.error > 10 * sorted(cost.error for cost in costs.values())[-2]
    assert 0 <= worst.sqnr_db < 25 < costs["fc"].sqnr_db
    index = ANCHORS.index("right")
    assert index in analysis.proposed("int8")
    nothing = next(s for s in analysis.sets("int8") if not s.layers)
    assert not nothing.holds and nothing.cosine < 0.995


def test_the_proposal_holds_on_other_samples(fragile, analysis):
    """The cosine is at least 0.99 on samples of neither calibration nor analysis."""
    data = _data(fragile, 12, 0)
    ranges = collect_ranges(fragile, [b.inputs for b in data.batches()])
    names = [ANCHORS[i] for i in analysis.proposed("int8")]
    run = Reference(quantize_model(fragile, ranges, Scheme(), names))
    exact = Reference(fragile)
    meter = AccuracyMeter("fidelity", has_labels=False)
    for batch in _data(fragile, 30, 1).batches():
        meter.add(run(batch.inputs), exact(batch.inputs), None, batch.valid)
    assert meter.result().cosine >= 0.99
    assert len(names) < len(ANCHORS)


def test_16_bit_floats_need_no_skipped_layer(analysis):
    for dtype in ("float16", "bfloat16"):
        assert analysis.proposed(dtype) == ()
        assert {s.layers for s in analysis.sets(dtype)} == {()}
    half, brain = (max(c.error for c in analysis.of(dtype)) for dtype in ("float16", "bfloat16"))
    assert half < brain / 10  # three bits of mantissa more: 64 times the error power


def test_gains_are_shares(analysis):
    for dtype in analysis.dtypes:
        gains = [cost.gain for cost in analysis.of(dtype)]
        assert 0 < sum(gains) < 1
        first = next(s for s in analysis.sets(dtype) if not s.layers)
        assert first.gain == pytest.approx(sum(gains))


def test_round_trip_and_table(analysis, tmp_path):
    text = json.dumps(analysis.to_dict(), allow_nan=False)
    assert Sensitivity.from_dict(json.loads(text)) == analysis
    analysis.write_csv(tmp_path / "sensitivity.csv")
    with (tmp_path / "sensitivity.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * len(ANCHORS)
    skipped = {(row["dtype"], int(row["index"])) for row in rows if row["proposed_skip"] == "True"}
    assert skipped == {("int8", i) for i in analysis.proposed("int8")}


def test_infinities_survive_json():
    cost = LayerCost(0, "a", "Conv", "int8", "measured", error=math.inf)
    found = SkipSet("int8", (), "exact", 1.0, None, 0.0, 0.0, 0, True)
    result = Sensitivity(("int8",), (cost,), (found,), 1, 1.0, {})
    again = Sensitivity.from_dict(json.loads(json.dumps(result.to_dict(), allow_nan=False)))
    assert again == result
    assert again.of("int8")[0].sqnr_db == -math.inf


def test_plot_is_a_picture(analysis, tmp_path):
    path = analysis.plot(tmp_path / "sensitivity.png")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 20_000


def test_labels_decide_where_there_are_some(digits):
    prepared, calibration, evaluation = digits
    ranges = collect_ranges(prepared.model, [b.inputs for b in calibration.batches()])
    found = sensitivity(prepared, calibration, ranges=ranges, samples=200, time_limit_s=60)
    names = [layer.name for layer in layer_table(prepared.model)]
    skip = [names[i] for i in found.proposed("int8")]
    run = Reference(quantize_model(prepared.model, ranges, Scheme(), skip))
    exact = Reference(prepared.reference)
    meter = AccuracyMeter("top1", has_labels=True)
    for batch in evaluation.batches():
        meter.add(run(batch.inputs), exact(batch.inputs), batch.labels, batch.valid, batch.padding)
    assert meter.result().drop <= 0.01
    assert len(skip) <= 1
    assert found.samples == 200


def test_statistics_are_computed_once(network, monkeypatch):
    calls = {"ranges": 0, "recordings": 0}

    def ranges_once(*args, **kwargs):
        calls["ranges"] += 1
        return collect_ranges(*args, **kwargs)

    class Once(Recording):
        def __init__(self, *args):
            calls["recordings"] += 1
            super().__init__(*args)

    monkeypatch.setattr(module, "collect_ranges", ranges_once)
    monkeypatch.setattr(single_layers, "Recording", Once)
    sensitivity(network, _data(network.model, 4, 0), samples=4, time_limit_s=60)
    assert calls == {"ranges": 1, "recordings": 1}
    ranges = collect_ranges(network.model, [b.inputs for b in _data(network.model, 4, 0).batches()])
    sensitivity(network, _data(network.model, 4, 0), ranges=ranges, samples=4, time_limit_s=60)
    assert calls == {"ranges": 1, "recordings": 2}


def test_time_is_bounded_and_what_is_missing_is_said(fragile):
    start = time.monotonic()
    found = sensitivity(fragile, _data(fragile, 4, 0), dtypes=["int8"], time_limit_s=1e-3)
    assert time.monotonic() - start < 5
    assert {cost.source for cost in found.of("int8")} == {"estimated"}
    assert all(cost.error > 0 and cost.cosine is None for cost in found.of("int8"))
    assert "6 of 6 costs are estimated" in found.notes[0]
    # No skip set was verified, so the float model is proposed.
    assert found.proposed("int8") == tuple(range(len(ANCHORS)))
    assert found.sets("int8")[-1].source == "exact"


def test_estimates_find_the_fragile_layer_too(fragile, monkeypatch):
    own_errors = single_layers._SingleLayers.own_errors

    def without_limit(self, costs, deadline):
        return own_errors(self, costs, math.inf)

    # Time remains for each layer's own error, but none to run the layers downstream of it.
    monkeypatch.setattr(single_layers._SingleLayers, "own_errors", without_limit)
    found = sensitivity(fragile, _data(fragile, 4, 0), dtypes=["int8"], time_limit_s=1e-3)
    assert {cost.source for cost in found.of("int8")} == {"estimated"}
    assert max(found.of("int8"), key=lambda cost: cost.error).name == "right"


def test_seed_chooses_the_samples(network):
    data = _data(network.model, 30, 0)
    errors = []
    for seed in (1, 1, 2):
        found = sensitivity(network, data, dtypes=["int8"], samples=5, seed=seed)
        assert found.samples == 5
        errors.append([cost.error for cost in found.costs])
    assert errors[0] == errors[1] != errors[2]


def test_layers_that_cannot_be_converted(make_model):
    from onnx import helper

    shape = ("float32", (4, 4))
    model = make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "dense"),
            helper.make_node("MatMul", ["x", "h"], ["y"], "scores"),
        ],
        {"x": shape},
        {"y": shape},
        {"w": np.eye(4, dtype=np.float32)},
    )
    x = np.random.default_rng(0).standard_normal((3, 4, 4)).astype(np.float32)
    data = Dataset(input_specs(model), {"x": x}, None, stacked=True)
    found = sensitivity(model, data, dtypes=["float16", "int8"], samples=3)
    assert [c.source for c in found.of("int8")] == ["measured", "not convertible"]
    assert found.of("int8")[1].reason == "both operands are activations"
    assert [c.source for c in found.of("float16")] == ["measured", "measured"]
    assert 1 not in found.proposed("int8")


def test_ranking_weighs_error_and_gain():
    def cost(index, error, gain, source="measured"):
        return LayerCost(index, "", "Conv", "int8", source, error=error, gain=gain)

    costs = [cost(0, 1e-3, 0.1), cost(1, 1e-3, 0.01), cost(2, 5e-3, 0.1)]
    assert [ranked(costs, thrift) for thrift in (0, 0.5, 1)] == [[2, 0, 1], [2, 1, 0], [1, 2, 0]]
    assert ranked([cost(0, 0.0, 0.0), cost(1, 1.0, 1.0, "not convertible")], 1) == [0]


def test_latency_is_measured_for_a_target(network):
    found = sensitivity(
        network,
        _data(network.model, 2, 0),
        dtypes=["int8"],
        samples=2,
        target=resolve_target("host", 1),
        time_limit_s=60,
    )
    timed = [cost for cost in found.of("int8") if cost.latency_s is not None]
    assert timed
    assert all(0 < c.latency_s < 1 and 0 < c.float_latency_s < 1 for c in timed)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dtypes": ["int4"]}, "dtypes must be one or more of float16, .*, but got int4"),
        ({"dtypes": []}, "but got none"),
        ({"dtypes": ["int8", "int8"]}, "each once, but got int8, int8"),
        ({"time_limit_s": 0}, "time_limit_s must be above 0 seconds, but got 0"),
        ({"samples": 0}, "samples must be at least 1, but got 0"),
        ({"max_drop": -1}, "max_drop must be at least 0, but got -1"),
    ],
)
def test_wrong_parameters(network, values, message):
    with pytest.raises(ConfigError, match=message):
        sensitivity(network, _data(network.model, 2, 0), **values)


def test_a_type_that_was_not_analysed(analysis):
    only = Sensitivity(("int8",), (), (), 0, 0.0, {})
    with pytest.raises(ConfigError, match=r"one that was analysed \(int8\), but got 'float16'"):
        only.proposed("float16")


def test_names_in_a_plot_are_no_mathematics(analysis, tmp_path):
    costs = tuple(dataclasses.replace(cost, name=r"$\frac{$") for cost in analysis.costs)
    path = dataclasses.replace(analysis, costs=costs).plot(tmp_path / "sensitivity.png")
    assert path.stat().st_size > 10_000
