"""LRN against the ONNX formula in NumPy float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tvmopt.device.target import resolve_target
from tvmopt.frontend.importer import import_onnx
from tvmopt.frontend.prepare import prepare
from tvmopt.stages.check import compile_for_check


def _by_numpy(x, size, alpha=1e-4, beta=0.75, bias=1.0):
    squares = np.square(x.astype("float64"))
    sums = np.stack(
        [
            squares[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].sum(axis=1)
            for c in range(x.shape[1])
        ],
        axis=1,
    )
    return x / (bias + alpha / size * sums) ** beta


@pytest.mark.sample(5)
@pytest.mark.parametrize("size", [1, 3, 5, 11])
@pytest.mark.parametrize("shape", [(2, 7, 5, 3), (1, 4, 6), (2, 3, 2, 3, 4)], ids=str)
@pytest.mark.parametrize(
    "more", [{}, {"alpha": 0.5, "beta": 0.6, "bias": 2.0}], ids=["default", "given"]
)
def test_values(make_model, shape, size, more):
    model = make_model(
        [helper.make_node("LRN", ["x"], ["y"], size=size, **more)],
        {"x": ("float32", shape)},
        {"y": ("float32", shape)},
    )
    mod = import_onnx(model)  # `prepare` calls ONNX Runtime, which supports four dimensions only
    x = np.random.default_rng(size).standard_normal(shape).astype("float32")
    (got,) = compile_for_check(mod, resolve_target("host", 1))([x])
    np.testing.assert_allclose(got, _by_numpy(x, size, **more), rtol=2e-6)


def test_a_square_that_overflows_is_nan_behind_its_windows(make_model):
    model = make_model(
        [helper.make_node("LRN", ["x"], ["y"], size=3)],
        {"x": ("float32", (1, 8, 1, 2))},
        {"y": ("float32", (1, 8, 1, 2))},
    )
    x = np.ones((1, 8, 1, 2), "float32")
    x[0, 2, 0, 1] = 1e38
    mod = import_onnx(prepare(model, {}).model)
    (got,) = compile_for_check(mod, resolve_target("host", 1))([x])
    assert np.isfinite(got[..., 0]).all()
    assert np.isfinite(got[0, :4, 0, 1]).all()
    assert (got[0, 1:4, 0, 1] == 0).all()
    assert np.isnan(got[0, 4:, 0, 1]).all()
