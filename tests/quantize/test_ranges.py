"""Tests of calibration ranges: min-max, histograms, percentiles."""

import json
import math

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tvmopt.errors import ConfigError, ModelError
from tvmopt.frontend.reference import Reference
from tvmopt.quantize import Ranges, Scheme, collect_ranges


def _values(model, names, batches):
    """Return all values of some tensors over all batches."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    inner = [name for name in names if name not in ("x", "y")]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    run = Reference(shown)
    found = {name: [] for name in names}
    for inputs in batches:
        values = {**inputs, **dict(zip(run.output_names, run(inputs), strict=True))}
        for name in names:
            found[name].append(values[name])
    return {name: np.concatenate([v.ravel() for v in arrays]) for name, arrays in found.items()}


def test_extremes_are_those_of_the_values(network, batches):
    ranges = collect_ranges(network.model, batches, Scheme(integer_adds=True))
    values = _values(network.model, list(ranges.tensors), batches)
    # Ranges cover inputs of integer nodes and results of add or concat, not results before a Relu.
    assert set(values) == {"x", "s", "l", "a0", "a", "r", "c", "p", "m", "d", "v", "f"}
    for name, (low, high) in ranges.tensors.items():
        assert low == pytest.approx(values[name].min(), abs=1e-6), name
        assert high == pytest.approx(values[name].max(), abs=1e-6), name
    assert ranges.batches == len(batches)


@pytest.mark.parametrize("method", ["entropy", "percentile"])
def test_histogram_methods_cut_outliers(network, method):
    rng = np.random.default_rng(0)
    batches = [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(8)]
    batches[-1]["x"][0, 0, 0, 0] = 40
    widest = collect_ranges(network.model, batches).tensors["x"]
    found = collect_ranges(network.model, batches, Scheme(method=method, percentile=99.0))
    low, high = found.tensors["x"]
    assert widest[1] == 40
    assert widest[0] <= low < -1 and 1 < high < 20


def test_percentile_is_that_of_the_values(network, batches):
    scheme = Scheme(method="percentile", percentile=90.0)
    ranges = collect_ranges(network.model, batches, scheme)
    values = _values(network.model, ["x", "m"], batches)
    for name, array in values.items():
        low, high = np.percentile(array, [5, 95])
        step = 2 * float(np.abs(array).max()) / 8192
        tolerance = step + 0.05  # among the few values around the percentile
        assert ranges.tensors[name] == pytest.approx((low, high), abs=tolerance), name


@settings(max_examples=15, deadline=None)
@given(
    scales=st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=4),
    method=st.sampled_from(["minmax", "entropy", "percentile"]),
    seed=st.integers(0, 1000),
)
def test_ranges_lie_within_the_values_however_batches_differ(make_model, scales, method, seed):
    """A histogram of the first batch would need 1e12 bins for the second."""
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "m")],
        {"x": ("float32", (4, 8))},
        {"y": ("float32", (4, 2))},
        {"w": np.ones((8, 2), np.float32)},
    )
    rng = np.random.default_rng(seed)
    batches = [{"x": (s * rng.standard_normal((4, 8))).astype(np.float32)} for s in scales]
    low, high = collect_ranges(model, batches, Scheme(method=method)).tensors["x"]
    values = np.concatenate([b["x"].ravel() for b in batches])
    slack = 1e-4 * np.abs(values).max()
    assert values.min() - slack <= low <= high <= values.max() + slack
    if method == "minmax":
        assert (low, high) == (values.min(), values.max())


def test_batches_may_come_from_a_generator(network, batches):
    for method in ("minmax", "percentile"):
        scheme = Scheme(method=method)
        from_list = collect_ranges(network.model, batches, scheme)
        assert collect_ranges(network.model, iter(batches), scheme) == from_list


def test_progress_and_silence(network, batches, capsys):
    seen = []
    collect_ranges(
        network.model, batches, Scheme(method="entropy"), lambda *args: seen.append(args)
    )
    assert seen[0] == (1, 6, "calibrate: smallest and largest values")
    assert seen[-1] == (6, 6, "calibrate: histograms")
    assert capsys.readouterr() == ("", "")


def test_round_trip_through_json(network, batches):
    ranges = collect_ranges(network.model, batches, Scheme(method="percentile"))
    again = Ranges.from_dict(json.loads(json.dumps(ranges.to_dict())))
    assert again == ranges
    odd = Ranges("minmax", None, 1, {"a": (-math.inf, 1.0), "b": (0.0, 1.0)})
    back = Ranges.from_dict(json.loads(json.dumps(odd.to_dict(), allow_nan=False)))
    assert (back.usable("a"), back.usable("b"), back.usable("c")) == (False, True, False)


def test_no_data(network):
    with pytest.raises(ConfigError, match="at least one batch of data, but got none"):
        collect_ranges(network.model, [])


def test_data_that_does_not_fit(network):
    with pytest.raises(ModelError, match="must run on the calibration data"):
        collect_ranges(network.model, [{"x": np.zeros((1, 4, 8, 8), np.float32)}])
