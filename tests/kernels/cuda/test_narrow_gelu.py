"""GELU of 16-bit outputs: the polynomial over all float16 inputs, and which expressions have it."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from tvm import ir, tirx

from tests.emulator.cuda import run
from tests.kernels.cuda.hopper.epilogues import elementwise
from tests.kernels.cuda.hopper.sources import gemm_config
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.common import narrow_gelu as module
from tvmopt.kernels.cuda.common.narrow_gelu import COEFFICIENTS, SCALE, instructions, narrow_gelu
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.problem import GemmProblem

X = tirx.Var("x", "float32")
HALF, ONE, ROOT, TWO = (
    tirx.const(value, "float32") for value in (0.5, 1.0, math.sqrt(0.5), math.sqrt(2.0))
)
ALL_FLOAT16 = np.arange(2**16, dtype=np.uint16).view(np.float16)


def _cdf(x: np.ndarray) -> np.ndarray:
    """The device function in float32, each fused multiply-add rounded once."""

    def fma(a, b, c):
        return (a.astype("f8") * b + c).astype("f4")

    z = x.astype("f4") * np.float32(SCALE)
    u, p = fma(z, z, -1.0), np.full(x.shape, COEFFICIENTS[-1], "f4")
    for coefficient in COEFFICIENTS[-2::-1]:
        p = fma(p, u, np.float32(coefficient))
    return np.nan_to_num(np.clip(fma(z, p, 0.5), 0, 1), nan=0.0)  # .sat makes NaN 0


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (0.5 + np.vectorize(math.erf)(x * math.sqrt(0.5)) * 0.5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("out", "eps"), [("float16", 2.0**-11), (ml_dtypes.bfloat16, 2.0**-8)])
def test_every_float16_input(out, eps):
    wide = ALL_FLOAT16.astype("f8")
    finite = np.isfinite(wide)
    x = wide[finite]
    exact, got = _gelu(x), x * _cdf(x)
    assert np.abs(_cdf(x) - np.vectorize(math.erf)(x * math.sqrt(0.5)) / 2 - 0.5).max() < 1.5e-6
    assert (np.abs(got - exact) <= 1.5e-6 * np.abs(x)).all()
    # Rounded, no result is further from the exact one than half a unit more of the output.
    rounded = got.astype("f4").astype(out).astype("f8")
    spacing = np.maximum(np.abs(exact) * 2 * eps, 2.0**-24)
    assert (np.abs(rounded - exact) <= 0.51 * spacing + 1.5e-6 * np.abs(x)).all()
    odd = wide[~finite]
    with np.errstate(invalid="ignore"):
        # As float32 computes it: -inf * 0 is NaN.
        want = np.where(odd == np.inf, np.inf, np.nan)
        np.testing.assert_array_equal(odd * _cdf(odd), want)


def _calls(expr: ir.Expr) -> str:
    return str(narrow_gelu(tirx.Cast("float16", expr), "float16"))


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        (X * (HALF + tirx.erf(X * ROOT) * HALF), "x * T.cuda"),
        (X * (HALF * tirx.erf(ROOT * X) + HALF), "x * T.cuda"),
        (HALF * X * (ONE + tirx.erf(X * ROOT)), "x * T.cuda"),
        (X * (tirx.erf(X / TWO) + ONE) * HALF, "x * T.cuda"),
        (X * (ONE + tirx.erf(X * ROOT)), "x * T.cuda"),
        ((X + ONE) * (ONE + tirx.erf((X + ONE) * ROOT)) * HALF, "(x + T.float32(1.0)) * T.cuda"),
    ],
)
def test_spellings(expr, wanted):
    text = _calls(expr)
    assert wanted in text and "T.erf" not in text
    assert ("* T.float32(2.0)" in text) == ("T.float32(0.5)" not in str(expr))


@pytest.mark.parametrize(
    "expr",
    [
        tirx.erf(X),
        HALF + HALF * tirx.erf(X * ROOT),  # NaN would become 0
        (X + ONE) * (HALF + HALF * tirx.erf(X * ROOT)),
        X * (HALF + HALF * tirx.erf(X)),
        X * (HALF + tirx.erf(X * ROOT)),
        X * (HALF + HALF * tirx.erf(X * ROOT) * tirx.erf(X * ROOT)),
        X * (HALF + HALF * tirx.tanh(X * ROOT)),
    ],
)
def test_other_expressions_stay(expr):
    assert "normal_cdf" not in _calls(expr)


@pytest.mark.parametrize("out", ["float32", "int8"])
def test_wide_outputs_stay_exact(out):
    expr = X * (HALF + tirx.erf(X * ROOT) * HALF)
    assert narrow_gelu(expr, out) is expr


def test_float64_stays():
    x = tirx.Var("x", "float64")
    half, root = tirx.const(0.5, "float64"), tirx.const(math.sqrt(0.5), "float64")
    assert "normal_cdf" not in _calls(x * (half + tirx.erf(x * root) * half))


def test_instructions_of_the_call():
    made = narrow_gelu(X * (HALF + tirx.erf(X * ROOT) * HALF), "float16")
    assert instructions(made.b) == 3 + len(COEFFICIENTS) - 1 == 13
    assert instructions(tirx.erf(X)) is None
    assert module._SOURCE.count("fmaf") == 12


def test_the_emulated_device_function():
    """Every 16th row of float16 values, as the accumulators of a GEMM with the identity."""

    def gelu(acc):
        return acc * (HALF + tirx.erf(acc * ROOT) * HALF)

    finite = ALL_FLOAT16[np.isfinite(ALL_FLOAT16)]
    columns = finite[: 64 * (len(finite) // 64)].reshape(-1, 64)[::16]
    rows = columns.shape[0]
    problem = GemmProblem(rows, 64, 64, epilogue=elementwise("float32", "float16", gelu, (), 2))
    made = gemm(problem, gemm_config(consumer_warpgroups=1, tile_n=64, epilogue_buffers=1))
    empty = np.full((rows, 64), np.nan, "f2")
    [got] = run(made, [columns, np.eye(64, dtype="f2")], [empty], GPUS["nvidia-h200"])
    x = columns.astype("f8")
    want = (x * _cdf(x)).astype("f4").astype("f2")
    np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=2.0**-10, atol=2.0**-24)
