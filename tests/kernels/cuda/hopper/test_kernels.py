"""Hopper kernels on a GPU or emulated: every output element against NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T  # noqa: N812

from tests.emulator.cuda import ORDERS, run
from tests.kernels.cuda.hopper.epilogues import elementwise
from tests.kernels.cuda.hopper.sources import H200
from tvmopt.kernels.cuda.hopper.config import Config
from tvmopt.kernels.cuda.hopper.conv import conv
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.problem import GemmProblem

RNG = np.random.default_rng(0)
SMALL = Config(consumers=1, columns=64, stages=4, buffers=1)
STAGED = dataclasses.replace(SMALL, columns=40, staged=True, persistent=False)
PERSISTENT = dataclasses.replace(STAGED, columns=64, persistent=True)
ONCE = Config(2, 2, 104, 4, persistent=False, buffers=2)
DIVIDED = Config(columns=128, stages=4, split=2, persistent=False, buffers=1)
SHARED = Config(columns=192, stages=3, cluster=2, buffers=1)
# What is computed, where it is not as ``product_of`` has it, and how.
PRODUCTS = [
    ({}, SMALL),
    ({"trans_b": False}, SMALL),
    ({"trans_a": True, "trans_b": False, "m": 136, "k": 77}, SMALL),
    ({"n": 263}, STAGED),
    ({"m": 5}, dataclasses.replace(STAGED, swap=True, columns=8, split=2)),
    ({"m": 1000, "n": 1000}, Config(columns=128, stages=5)),
    ({"m": 1000, "n": 1000}, Config(columns=128, stages=5, cluster=2)),
    ({"m": 300, "n": 96}, dataclasses.replace(STAGED, split=3)),
    ({"m": 300}, DIVIDED),
    ({"m": 300, "k": 700}, dataclasses.replace(DIVIDED, consumers=1, columns=256, split=4)),
    (
        {"dtype": "int8", "out": "int32", "k": 700},
        dataclasses.replace(STAGED, columns=48, split=2),
    ),
    ({"batch": 5}, SMALL),
    ({"batch": 5, "batch_b": False}, STAGED),
    ({"dynamic": True}, SMALL),
    ({"out": "float32"}, SMALL),
    ({"dtype": "int8", "out": "int32"}, dataclasses.replace(SMALL, consumers=2)),
    ({"k": 271}, SMALL),
    ({"n": 263, "k": 270, "batch": 2}, STAGED),
    ({"n": 263, "trans_b": False, "dynamic": True}, PERSISTENT),
    ({"m": 300, "n": 520, "trans_b": False}, SHARED),
    ({"m": 1000, "n": 1000, "k": 1000}, Config(1, 2, 72, 8, 4, 2, swap=True, buffers=1)),
    ({"m": 1000, "n": 1000, "trans_b": False}, Config(columns=128, stages=5, beside=4)),
    ({"m": 300, "n": 1000, "batch": 3}, Config(1, 1, 104, 8, 2, 2, staged=True)),
    ({"m": 300, "trans_a": True}, Config(2, 1, 64, 6, 2, 2, buffers=1)),
    ({"m": 61, "n": 264}, Config(2, 1, 24, 6, 1, 2, swap=True)),
    ({"m": 300, "n": 1000}, Config(1, 2, 104, 6, 4, 2, flight=2)),
    ({"m": 300, "n": 272, "dtype": "int8", "out": "int8", "k": 700}, Config(1, 1, 144, 6)),
    ({"m": 16}, Config(columns=16, split=2, swap=True, persistent=False, buffers=1)),
    ({"m": 777, "dynamic": True}, Config(1, 1, 128, 6, 4, 2)),
    ({"m": 1000, "n": 520}, ONCE),
    ({"m": 300, "out": "float32"}, dataclasses.replace(ONCE, atoms=1, buffers=4)),
    ({"m": 1000}, dataclasses.replace(ONCE, columns=136, cluster=2, beside=2, buffers=1)),
    ({"n": 1000}, dataclasses.replace(ONCE, columns=72, swap=True, cluster=4)),
    ({"dtype": "int8", "out": "int32", "k": 273, "trans_b": False}, SMALL),
    ({"m": 300, "n": 10}, PERSISTENT),
    ({"m": 300, "n": 67, "out": "float32"}, dataclasses.replace(PERSISTENT, columns=128)),
]
# How convolutions are.
CONVOLUTIONS = [
    SMALL,
    STAGED,
    dataclasses.replace(STAGED, split=4),
    dataclasses.replace(ONCE, columns=128),
]


def product_of(fields):
    """A product of which ``fields`` are given."""
    return GemmProblem(**{"m": 77, "n": 264, "k": 272, **fields})


def convolution_of(stride, channels=24, layout="OHWI"):
    """A small convolution of 40 filters, 3 x 3."""
    return ConvProblem(
        3, 13, 9, channels, 40, stride=(stride, stride), padding=(1, 1, 1, 1), weight=layout
    )


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """Return the GPU, or None to emulate one; skip without a Hopper GPU."""
    if request.param == "emulated":
        return None
    gpu = tvm.cuda()
    if not gpu.exist or str(gpu.compute_version) != "9.0":
        pytest.skip("needs a Hopper GPU")
    return gpu


def _run(func, inputs, shape, dtype, device):
    empty = np.full(shape, 77 if "int" in dtype else np.nan, dtype)
    if device is None:
        return _emulated(func, inputs, empty)
    built = tvm.compile(tvm.IRModule({"main": func}), target=H200.to_tvm(), tir_pipeline="tirx")
    out = tvm.runtime.tensor(empty, device)
    built["main"](*(tvm.runtime.tensor(x, device) for x in inputs), out)
    return out.numpy()


def _emulated(func, inputs, empty):
    """The result, which is the same whenever copies and products are done."""
    first, *others = [run(func, inputs, [empty], H200, order=order)[0] for order in ORDERS]
    for other in others:
        np.testing.assert_array_equal(other, first)
    return first


def _matrix(*shape, dtype="float16"):
    if dtype == "int8":
        return RNG.integers(-128, 128, shape).astype(dtype)
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(("fields", "config"), PRODUCTS)
def test_products(fields, config, device):
    p = product_of(fields)
    front = (p.batch,) if p.batch > 1 else ()
    a = _matrix(*(front if p.batch_a else ()), p.m, p.k, dtype=p.dtype)
    b = _matrix(*(front if p.batch_b else ()), p.k, p.n, dtype=p.dtype)
    wide = "int64" if p.dtype == "int8" else "float64"
    want = np.matmul(a.astype(wide), b.astype(wide))
    inputs = [
        np.ascontiguousarray(np.swapaxes(x, -1, -2)) if turned else x
        for x, turned in ((a, p.trans_a), (b, p.trans_b))
    ]
    got = _run(gemm(p, config), inputs, want.shape, p.out, device)
    if p.dtype == "int8":
        np.testing.assert_array_equal(got, want.astype(p.out))  # int8 output keeps the low bits
    else:
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("config", [SMALL, STAGED, ONCE])
def test_epilogue(config, device):
    m, n, k = 77, 264, 136

    def compute(acc, bias, residual):
        return T.max(acc + T.cast(bias, "float32"), tirx.const(0, "float32")) + T.cast(
            residual, "float32"
        )

    ending = elementwise(
        "float32", "float16", compute, [("float16", (n,), (1,)), ("float16", (m, n), (0, 1))], 2
    )
    a, b, bias, residual = _matrix(m, k), _matrix(n, k), _matrix(n), _matrix(m, n)
    problem = GemmProblem(m, n, k, epilogue=ending)
    got = _run(gemm(problem, config), [a, b, bias, residual], (m, n), "float16", device)
    want = np.maximum(a.astype("f8") @ b.astype("f8").T + bias, 0) + residual
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("config", CONVOLUTIONS)
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions(config, stride, device):
    _check_conv(config, stride, 24, "OHWI", device)


@pytest.mark.parametrize("layout", ["OHWI", "HWIO"])
@pytest.mark.parametrize("channels", [1, 3, 12, 16, 32, 48, 80])
def test_channels(channels, layout, device):
    _check_conv(SMALL, 1, channels, layout, device)


def _check_conv(config, stride, channels, layout, device):
    p = convolution_of(stride, channels, layout)
    x, w = _matrix(3, 13, 9, channels), _matrix(40, 3, 3, channels)
    high, wide = p.out_size
    padded = np.pad(x.astype("f8"), ((0, 0), (1, 1), (1, 1), (0, 0)))
    want = np.zeros((3, high, wide, 40))
    for r in range(3):
        for s in range(3):
            part = padded[:, r : r + stride * high : stride, s : s + stride * wide : stride]
            want += part[:, :high, :wide] @ w[:, r, s].astype("f8").T
    if layout == "HWIO":
        w = np.ascontiguousarray(w.transpose(1, 2, 3, 0))
    got = _run(conv(p, config), [x, w], want.shape, "float16", device)
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-2)
