"""Errors of 16-bit residual sums: their order, and what the encoder in NumPy computes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.residual_sums import Encoder, errors


@pytest.mark.parametrize("norm_first", [False, True])
def test_sums_of_16_bits_cost_less_than_pytorchs(norm_first) -> None:
    x = np.random.default_rng(1).standard_normal((32, 128), np.float32)
    encoder = Encoder(6, 128, norm_first)
    for dtype in ("float16", "bfloat16"):
        found = errors(encoder, x, dtype)
        assert 0 < found["float32"] < found["16 bits"] < 1.05 * found["PyTorch"]


def test_the_output_is_normalised_and_its_rows_depend_on_each_other() -> None:
    x = np.random.default_rng(1).standard_normal((8, 128), np.float32)
    encoder = Encoder(2, 128, norm_first=True)
    got = encoder.run(x)
    np.testing.assert_allclose(got.std(-1), 1, rtol=1e-4)
    x[0] += np.random.default_rng(2).standard_normal(128, np.float32)
    assert np.abs(encoder.run(x)[1:] - got[1:]).max() > 1e-3
