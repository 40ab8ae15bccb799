"""Ranges of activations that are narrowed where the layers that read them lose less."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tvmopt.frontend import prepare
from tvmopt.quantize import Quantizer, Scheme, collect_ranges
from tvmopt.quantize.correct import output_error
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.narrow_ranges import narrow_ranges


@pytest.fixture(scope="module")
def layer(make_model):
    """Return a model of one convolution."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    constants = {
        "w": rng.standard_normal((8, 4, 1, 1)).astype(np.float32),
        "b": rng.standard_normal(8).astype(np.float32),
    }
    tensors = {"x": ("float32", (1, 4, 96, 96))}, {"y": ("float32", (1, 8, 96, 96))}
    return prepare(make_model(nodes, *tensors, constants), {}).model


def _draws(rare, count=12, seed=0):
    """Return batches of values from -1 to 1, among them ``rare`` and ``-rare``."""
    rng = np.random.default_rng(seed)
    found = [rng.uniform(-1, 1, (1, 4, 96, 96)).astype(np.float32) for _ in range(count)]
    found[0][0, 0, 0, :2] = rare, -rare
    return [{"x": value} for value in found]


def test_a_rare_large_value_is_clipped(layer):
    batches = _draws(2.0)
    ranges = collect_ranges(layer, batches)
    found = narrow_ranges(layer, ranges, batches)
    (low, high), (lower, higher) = found.tensors["x"], ranges.tensors["x"]
    assert higher == 2
    assert high < 0.8 * higher
    assert low / lower == pytest.approx(high / higher)
    others = _draws(0.0, seed=1)
    assert output_error(layer, found, others) < 0.6 * output_error(layer, ranges, others)


def test_values_that_fill_their_range_keep_it(layer):
    batches = _draws(0.0)
    ranges = collect_ranges(layer, batches)
    assert narrow_ranges(layer, ranges, batches) == ranges


@settings(deadline=None, max_examples=15)
@given(st.floats(1.0, 30.0), st.integers(0, 100))
def test_a_range_only_shrinks_and_never_below_half(layer, rare, seed):
    batches = _draws(rare, count=3, seed=seed)
    ranges = collect_ranges(layer, batches)
    found = narrow_ranges(layer, ranges, batches)
    for name, (low, high) in ranges.tensors.items():
        lower, upper = found.tensors[name]
        assert low <= lower <= low / 2
        assert high / 2 <= upper <= high
    assert dataclasses.replace(found, tensors=ranges.tensors) == ranges


def test_the_error_of_the_layer_does_not_rise(layer):
    """The search compares the error that a quantized layer has with a corrected bias."""
    batches = _draws(3.0)
    ranges = collect_ranges(layer, batches)
    found = narrow_ranges(layer, ranges, batches)
    exact = new_session(layer)
    powers = []
    for one in (ranges, found):
        session = new_session(Quantizer(layer, one, Scheme())())
        errors = [session.run(None, b)[0] - exact.run(None, b)[0] for b in batches]
        powers.append(float(np.mean(np.square(errors))))
    assert powers[1] < powers[0]


def test_a_range_that_is_not_finite_stays(layer):
    batches = _draws(2.0)
    ranges = collect_ranges(layer, batches)
    odd = dataclasses.replace(ranges, tensors={**ranges.tensors, "x": (0.0, float("nan"))})
    assert np.isnan(narrow_ranges(layer, odd, batches).tensors["x"][1])
