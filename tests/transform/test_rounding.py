"""Rounding of convolution weights to 16 bits keeps the sum of each kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmopt.device.dtypes import dtype as dtype_of
from tvmopt.transform.precision.casting import cast_array
from tvmopt.transform.precision.rounding import round_keeping_sums


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["float16", "bfloat16"]),
    st.integers(0, 2**16),
    st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5)),
)
def test_taps_move_by_less_than_a_unit_and_sums_come_nearer(dtype, seed, shape):
    rng = np.random.default_rng(seed)
    weight = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3)).astype(np.float32)
    got = round_keeping_sums(weight, dtype)
    assert (got.dtype, got.shape) == (dtype_of(dtype).numpy, weight.shape)
    nearest = cast_array(weight, dtype).astype(np.float64)
    values = got.astype(np.float64)
    units = 2 * np.abs(np.nextafter(np.abs(got), dtype_of(dtype).numpy.type(np.inf)) - np.abs(got))
    assert (np.abs(values - weight) <= units.astype(np.float64)).all()
    before, after = (np.abs((x - weight.astype(np.float64)).sum((2, 3))) for x in (nearest, values))
    assert (after <= before).all()


@pytest.mark.parametrize(("dtype", "nearly"), [("bfloat16", 2**-9), ("float16", 2**-12)])
def test_kernels_with_zero_sum_keep_it(dtype, nearly):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 1, 3, 3)).astype(np.float32)
    weight -= weight.mean(axis=(2, 3), keepdims=True)
    sums = np.abs(round_keeping_sums(weight, dtype).astype(np.float64).sum((2, 3)))
    plain = np.abs(cast_array(weight, dtype).astype(np.float64).sum((2, 3)))
    assert np.median(sums) < nearly / 4
    assert np.median(sums) < np.median(plain) / 5


def test_exact_values_stay():
    weight = np.arange(-8, 10, dtype=np.float32).reshape(2, 1, 3, 3)
    np.testing.assert_array_equal(round_keeping_sums(weight, "bfloat16").astype(np.float32), weight)


def test_largest_values_do_not_overflow():
    weight = np.full((1, 1, 2, 2), 65500.0, np.float32)
    assert np.isfinite(round_keeping_sums(weight, "float16").astype(np.float32)).all()
