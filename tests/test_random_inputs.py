"""Tests of random inputs of every dtype."""

from __future__ import annotations

import numpy as np
import pytest

from tvmopt.random_inputs import random_arrays
from tvmopt.runtime.metadata import TensorSpec


def _draw(dtype, kind="normal", shape=(200,), seed=0):
    [array] = random_arrays([TensorSpec("x", shape, dtype)], seed, kind).values()
    assert (array.dtype, array.shape) == (np.dtype(dtype), shape)
    return array


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_are_normal(dtype):
    x = _draw(dtype).astype(float)
    assert abs(x.mean()) < 0.3
    assert 0.8 < x.std() < 1.2


@pytest.mark.parametrize("kind", ["normal", "binary"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
def test_whole_numbers_are_0_or_1(dtype, kind):
    assert set(_draw(dtype, kind).astype(int)) == {0, 1}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_binary_floats_are_0_or_1(dtype):
    assert set(_draw(dtype, "binary").tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_scalars(dtype):
    _draw(dtype, shape=())


def test_seed_decides():
    np.testing.assert_array_equal(_draw("float32", seed=1), _draw("float32", seed=1))
    assert not np.array_equal(_draw("float32", seed=1), _draw("float32", seed=2))


def test_stacked_samples():
    specs = [TensorSpec("a", (2, 3), "float32"), TensorSpec("b", (), "int64")]
    arrays = random_arrays(specs, 0, "normal", samples=8)
    assert {name: array.shape for name, array in arrays.items()} == {"a": (8, 2, 3), "b": (8,)}
