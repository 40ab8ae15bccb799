"""Accuracy of the polynomial approximations against NumPy float64."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from tests.kernels.cpu.harness import ARCH, lower, run
from tvmopt.kernels.module_schedules import schedule_module

_EXACT = {
    "exp": (relax.op.exp, np.exp, 1.0),
    "sigmoid": (relax.op.sigmoid, lambda x: 1 / (1 + np.exp(-x)), 3.0),
    "tanh": (relax.op.tanh, np.tanh, 6.0),
    "erf": (relax.op.erf, np.vectorize(math.erf), 7.0),
}
_SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, 88.5, 88.72, 89.0, -87.0, -103.0, -200.0]


@pytest.mark.parametrize("name", _EXACT)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_error_in_units_of_the_last_place(name: str, dtype: str) -> None:
    operator, exact, ulps = _EXACT[name]
    rng = np.random.default_rng(0)
    x = np.concatenate([
        rng.standard_normal(2000) * 3, rng.uniform(-90, 90, 2000), rng.uniform(-1e-3, 1e-3, 96)
    ]).astype(dtype)  # fmt: skip
    mod, _ = schedule_module(lower(operator, [(x.shape, dtype)]), ARCH)
    (got,) = run(mod, [x])
    with np.errstate(over="ignore"):
        expected = exact(x.astype("float64"))
        rounded = expected.astype(dtype)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(rounded))
    normal = np.isfinite(rounded) & (np.abs(rounded) >= np.finfo(dtype).tiny)
    error = np.abs(got.astype("float64") - expected)[normal]
    assert (error / np.spacing(np.abs(rounded[normal])).astype("float64")).max() <= ulps


@pytest.mark.parametrize("name", _EXACT)
def test_special_values(name: str) -> None:
    operator, exact, _ = _EXACT[name]
    x = np.array(_SPECIAL, "float32")
    mod, _ = schedule_module(lower(operator, [(x.shape, "float32")]), ARCH)
    (got,) = run(mod, [x])
    with np.errstate(all="ignore"):
        expected = exact(x.astype("float64")).astype("float32")
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-37)


def test_calls_are_gone_from_the_schedule() -> None:
    mod, _ = schedule_module(lower(relax.op.tanh, [((64,), "float32")]), ARCH)
    assert "T.tanh" not in mod.script()


def test_float64_keeps_its_calls() -> None:
    mod, _ = schedule_module(lower(relax.op.tanh, [((64,), "float64")]), ARCH)
    assert "T.tanh" in mod.script()


@pytest.mark.parametrize("name", _EXACT)
def test_bfloat16_before_and_behind(name: str) -> None:
    """TVM miscompiles bfloat16 inside a Let, so functions with it keep their calls."""
    operator, exact, _ = _EXACT[name]
    x = np.linspace(-4, 4, 333).astype("float32").astype(ml_dtypes.bfloat16)

    def body(value: relax.Expr) -> relax.Expr:
        return relax.op.astype(operator(relax.op.astype(value, "float32")), "bfloat16")

    mod, _ = schedule_module(lower(body, [(x.shape, "bfloat16")]), ARCH)
    (got,) = run(mod, [x])
    expected = exact(x.astype("float64"))
    np.testing.assert_allclose(got.astype("float64"), expected, rtol=2**-7, atol=1e-6)


def test_factor_of_a_product() -> None:
    """TVM visits both factors of a multiplication twice, and rejects a repeated Let."""
    x = np.linspace(-4, 4, 333).astype("float32")

    def body(value: relax.Expr) -> relax.Expr:
        half = relax.const(np.float32(0.5))
        gate = relax.op.multiply(relax.op.sigmoid(relax.op.round(value)), half)
        return relax.op.multiply(gate, relax.op.tanh(value))

    mod, _ = schedule_module(lower(body, [(x.shape, "float32")]), ARCH)
    (got,) = run(mod, [x])
    expected = 0.5 / (1 + np.exp(-np.round(x.astype("float64")))) * np.tanh(x.astype("float64"))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exponent", [0.25, 0.75, -0.75, 1.5, -0.5, 2.0, 3.0, -1.0, 4.0])
def test_powers(exponent: float) -> None:
    random = np.random.default_rng(0).uniform(-4, 30, 2000)
    x = np.concatenate([random, [v for v in _SPECIAL if abs(v) != 1e-30]]).astype("float32")

    def power(value: relax.Expr) -> relax.Expr:
        return relax.op.power(value, relax.const(np.float32(exponent)))

    mod, _ = schedule_module(lower(power, [(x.shape, "float32")]), ARCH)
    assert "T.pow" not in mod.script()
    (got,) = run(mod, [x])
    with np.errstate(all="ignore"):
        expected = np.power(x.astype("float64"), exponent).astype("float32")
    np.testing.assert_allclose(got, expected, rtol=4 * 2.0**-23, atol=0)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(expected)[number])


@pytest.mark.parametrize("exponent", [0.3, 7.0, 0.0])
def test_other_powers_keep_their_calls(exponent: float) -> None:
    x = np.linspace(0.5, 3, 32).astype("float32")

    def power(value: relax.Expr) -> relax.Expr:
        return relax.op.power(value, relax.const(np.float32(exponent)))

    mod, _ = schedule_module(lower(power, [(x.shape, "float32")]), ARCH)
    assert "T.pow" in mod.script()
    (got,) = run(mod, [x])
    np.testing.assert_allclose(got, x**exponent, rtol=1e-5)
