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
from tests.kernels.cuda.hopper.sources import H200, conv_config, fitted, gemm_config
from tvmopt.kernels.cuda.hopper.conv import conv
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.problem import GemmProblem

RNG = np.random.default_rng(0)
SMALL = gemm_config(consumer_warpgroups=1, tile_n=64, epilogue_buffers=1)
SMEM_STORE = dataclasses.replace(SMALL, tile_n=40, smem_store=True, persistent=False)
PERSISTENT = dataclasses.replace(SMEM_STORE, tile_n=64, persistent=True)
ONE_TILE = gemm_config(m_atoms=2, tile_n=104, persistent=False, epilogue_buffers=2)
CLUSTER_SPLIT_K = gemm_config(tile_n=128, split_k=2, persistent=False, epilogue_buffers=1)
MULTICAST = gemm_config(tile_n=192, stages=3, cluster_m=2, epilogue_buffers=1)
# Stages that hold more columns of an MN-major right operand than wgmma reads.
_MN_MAJOR = {"trans_a": True, "trans_b": False, "m": 136}
PARTLY_READ_BLOCKS = [
    (_MN_MAJOR, dataclasses.replace(SMALL, tile_n=72, whole_blocks=True)),
    (
        {**_MN_MAJOR, "n": 520},
        gemm_config(tile_n=144, stages=5, persistent=False, epilogue_buffers=3, whole_blocks=True),
    ),
    (
        {**_MN_MAJOR, "n": 1000, "k": 700},
        gemm_config(tile_n=104, stages=4, cluster_m=4, smem_store=True, whole_blocks=True),
    ),
    (
        {**_MN_MAJOR, "m": 40, "n": 300},
        dataclasses.replace(SMEM_STORE, split_k=2, swap_ab=True, whole_blocks=True),
    ),
]
# Fields that differ from ``gemm_problem``'s, and the configuration.
GEMMS = [
    ({}, SMALL),
    ({"trans_b": False}, SMALL),
    ({"trans_a": True, "trans_b": False, "m": 136, "k": 77}, SMALL),
    ({"n": 263}, SMEM_STORE),
    ({"m": 5}, dataclasses.replace(SMEM_STORE, swap_ab=True, tile_n=8, split_k=2)),
    ({"m": 1000, "n": 1000}, gemm_config(tile_n=128, stages=5)),
    ({"m": 1000, "n": 1000}, gemm_config(tile_n=128, stages=5, cluster_m=2)),
    ({"m": 300, "n": 96}, dataclasses.replace(SMEM_STORE, split_k=3)),
    ({"m": 300}, CLUSTER_SPLIT_K),
    (
        {"m": 300, "k": 700},
        dataclasses.replace(CLUSTER_SPLIT_K, consumer_warpgroups=1, tile_n=256, split_k=4),
    ),
    (
        {"dtype": "int8", "out": "int32", "k": 700},
        dataclasses.replace(SMEM_STORE, tile_n=48, split_k=2),
    ),
    ({"batch": 5}, SMALL),
    ({"batch": 5, "batch_b": False}, SMEM_STORE),
    ({"dynamic": True}, SMALL),
    ({"out": "float32"}, SMALL),
    ({"dtype": "int8", "out": "int32"}, dataclasses.replace(SMALL, consumer_warpgroups=2)),
    ({"k": 271}, SMALL),
    ({"n": 263, "k": 270, "batch": 2}, SMEM_STORE),
    ({"n": 263, "trans_b": False, "dynamic": True}, PERSISTENT),
    ({"m": 300, "n": 520, "trans_b": False}, MULTICAST),
    (
        {"m": 1000, "n": 1000, "k": 1000},
        gemm_config(
            tile_n=72, stages=8, cluster_m=4, cluster_n=2, swap_ab=True, epilogue_buffers=1
        ),
    ),
    ({"m": 1000, "n": 1000, "trans_b": False}, gemm_config(tile_n=128, stages=5, cluster_n=4)),
    (
        {"m": 300, "n": 1000, "batch": 3},
        gemm_config(
            consumer_warpgroups=1, tile_n=104, stages=8, cluster_m=2, cluster_n=2, smem_store=True
        ),
    ),
    (
        {"m": 300, "trans_a": True},
        gemm_config(
            m_atoms=2,
            consumer_warpgroups=1,
            tile_n=64,
            stages=6,
            cluster_m=2,
            cluster_n=2,
            epilogue_buffers=1,
        ),
    ),
    (
        {"m": 61, "n": 264},
        gemm_config(
            m_atoms=2, consumer_warpgroups=1, tile_n=24, stages=6, cluster_n=2, swap_ab=True
        ),
    ),
    (
        {"m": 300, "n": 1000},
        gemm_config(tile_n=104, stages=6, cluster_m=4, cluster_n=2, wgmma_wait_depth=2),
    ),
    (
        {"m": 300, "n": 272, "dtype": "int8", "out": "int8", "k": 700},
        gemm_config(consumer_warpgroups=1, tile_n=144, stages=6),
    ),
    (
        {"m": 16},
        gemm_config(tile_n=16, split_k=2, swap_ab=True, persistent=False, epilogue_buffers=1),
    ),
    (
        {"m": 777, "dynamic": True},
        gemm_config(consumer_warpgroups=1, tile_n=128, stages=6, cluster_m=4, cluster_n=2),
    ),
    ({"m": 1000, "n": 520}, ONE_TILE),
    ({"m": 300, "out": "float32"}, dataclasses.replace(ONE_TILE, m_atoms=1, epilogue_buffers=4)),
    (
        {"m": 1000},
        dataclasses.replace(ONE_TILE, tile_n=136, cluster_m=2, cluster_n=2, epilogue_buffers=1),
    ),
    ({"n": 1000}, dataclasses.replace(ONE_TILE, tile_n=72, swap_ab=True, cluster_m=4)),
    ({"dtype": "int8", "out": "int32", "k": 273, "trans_b": False}, SMALL),
    ({"m": 300, "n": 10}, PERSISTENT),
    ({"m": 300, "n": 67, "out": "float32"}, dataclasses.replace(PERSISTENT, tile_n=128)),
    *PARTLY_READ_BLOCKS,
]
CONVOLUTIONS = [
    SMALL,
    SMEM_STORE,
    dataclasses.replace(SMEM_STORE, split_k=4),
    dataclasses.replace(ONE_TILE, tile_n=128),
]


def gemm_problem(fields):
    """A small GEMM with these ``fields``."""
    return GemmProblem(**{"m": 77, "n": 264, "k": 272, **fields})


def conv_problem(stride, channels=24, layout="OHWI"):
    """A small convolution of 40 filters, 3 x 3."""
    return ConvProblem(
        3, 13, 9, channels, 40, stride=(stride, stride), padding=(1, 1, 1, 1), weight=layout
    )


def run_kernel(func, inputs, shape, dtype, device):
    empty = np.full(shape, 77 if "int" in dtype else np.nan, dtype)
    if device is None:
        return _emulated(func, inputs, empty)
    built = tvm.compile(tvm.IRModule({"main": func}), target=H200.to_tvm(), tir_pipeline="tirx")
    out = tvm.runtime.tensor(empty, device)
    built["main"](*(tvm.runtime.tensor(x, device) for x in inputs), out)
    return out.numpy()


def _emulated(func, inputs, empty):
    """Return the result; it must not depend on when TMA and wgmma complete."""
    first, *others = [run(func, inputs, [empty], H200, order=order)[0] for order in ORDERS]
    for other in others:
        np.testing.assert_array_equal(other, first)
    return first


def _matrix(*shape, dtype="float16"):
    if dtype == "int8":
        return RNG.integers(-128, 128, shape).astype(dtype)
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("fields", "config"), PARTLY_READ_BLOCKS)
def test_gemms_with_partly_read_blocks(fields, config, device):
    test_gemms(fields, config, device)


@pytest.mark.sample(4)
@pytest.mark.parametrize(("fields", "config"), GEMMS)
def test_gemms(fields, config, device):
    p = gemm_problem(fields)
    front = (p.batch,) if p.batch > 1 else ()
    a = _matrix(*(front if p.batch_a else ()), p.m, p.k, dtype=p.dtype)
    b = _matrix(*(front if p.batch_b else ()), p.k, p.n, dtype=p.dtype)
    wide = "int64" if p.dtype == "int8" else "float64"
    want = np.matmul(a.astype(wide), b.astype(wide))
    inputs = [
        np.ascontiguousarray(np.swapaxes(x, -1, -2)) if transposed else x
        for x, transposed in ((a, p.trans_a), (b, p.trans_b))
    ]
    got = run_kernel(gemm(p, fitted(config, p.dtype)), inputs, want.shape, p.out, device)
    if p.dtype == "int8":
        np.testing.assert_array_equal(got, want.astype(p.out))  # int8 output keeps the low bits
    else:
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-2)


@pytest.mark.sample(2)
@pytest.mark.parametrize("config", [SMALL, SMEM_STORE, ONE_TILE])
def test_epilogue(config, device):
    m, n, k = 77, 264, 136

    def compute(acc, bias, residual):
        return T.max(acc + T.cast(bias, "float32"), tirx.const(0, "float32")) + T.cast(
            residual, "float32"
        )

    epilogue = elementwise(
        "float32", "float16", compute, [("float16", (n,), (1,)), ("float16", (m, n), (0, 1))], 2
    )
    a, b, bias, residual = _matrix(m, k), _matrix(n, k), _matrix(n), _matrix(m, n)
    problem = GemmProblem(m, n, k, epilogue=epilogue)
    got = run_kernel(gemm(problem, config), [a, b, bias, residual], (m, n), "float16", device)
    want = np.maximum(a.astype("f8") @ b.astype("f8").T + bias, 0) + residual
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-2)


@pytest.mark.sample(2)
@pytest.mark.parametrize("config", CONVOLUTIONS)
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions(config, stride, device):
    check_conv(config, stride, 24, "OHWI", device)


@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", ["OHWI", "HWIO"])
@pytest.mark.parametrize("channels", [1, 3, 12, 16, 32, 48, 80])
def test_channels(channels, layout, device):
    check_conv(SMALL, 1, channels, layout, device)


@pytest.mark.sample(2)
@pytest.mark.parametrize("config", [SMALL, SMEM_STORE, dataclasses.replace(ONE_TILE, tile_n=128)])
@pytest.mark.parametrize("channels", [2, 3])
def test_a_kernel_of_fewer_rows_than_a_k_block_holds(channels, config, device):
    few = conv_problem(2, channels).few_channels
    assert few.fold > few.loaded_rows == 3
    check_conv(config, 2, channels, "HWIO", device)


def check_conv(config, stride, channels, layout, device):
    """Check a convolution against NumPy."""
    p = conv_problem(stride, channels, layout)
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
    got = run_kernel(conv(p, conv_config(config)), [x, w], want.shape, "float16", device)
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-2)
