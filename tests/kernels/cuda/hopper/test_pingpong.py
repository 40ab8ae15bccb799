"""Ping-pong: two consumer warpgroups that compute tiles in turn, emulated, against NumPy."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from tvm import tirx

from tests.kernels.cuda.hopper.epilogues import elementwise
from tests.kernels.cuda.hopper.sources import H200, cuda_source, gemm_config
from tests.kernels.cuda.hopper.test_kernels import check_conv, run_kernel
from tvmopt.kernels.cuda.hopper.cost import gemm_cost
from tvmopt.kernels.cuda.hopper.cost_constants import COSTS
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.problem import GemmProblem
from tvmopt.kernels.cuda.hopper.ranking import gemm_configs

RNG = np.random.default_rng(0)
# Two thread blocks, so that each has several tiles.
SMALL = dataclasses.replace(
    gemm_config(tile_n=64, pingpong=True, epilogue_buffers=1),
    arch=dataclasses.replace(H200, sms=2),
)


def _problem(**fields) -> GemmProblem:
    return GemmProblem(**{"m": 300, "n": 128, "k": 272, **fields})


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("fields", "config"),
    [
        # Five K blocks a tile: less than, equal to, and more than the stages.
        *[({}, {"stages": stages}) for stages in (2, 3, 4, 5, 7)],
        ({"k": 64}, {"stages": 3}),
        ({"k": 192, "m": 60, "n": 64}, {}),  # one tile: a warpgroup has none
        ({"k": 128, "trans_b": False, "m": 130, "n": 200}, {"m_atoms": 2, "tile_n": 128}),
        ({"out": "float32"}, {"tile_n": 96, "epilogue_buffers": 3}),
        ({"dynamic": True}, {"wgmma_wait_depth": 2}),
        ({"batch": 2, "m": 100}, {"wgmma_wait_depth": 0}),
    ],
)
def test_gemms(fields, config, device):
    p = _problem(**fields)
    front = (p.batch,) if p.batch > 1 else ()
    a = RNG.standard_normal((*front, p.m, p.k)).astype("float16")
    b = RNG.standard_normal((*front, p.k, p.n)).astype("float16")
    inputs = [a, np.ascontiguousarray(np.swapaxes(b, -1, -2)) if p.trans_b else b]
    made = gemm(p, dataclasses.replace(SMALL, **config))
    got = run_kernel(made, inputs, (*front, p.m, p.n), p.out, device)
    want = np.matmul(a.astype("f8"), b.astype("f8"))
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-2)


def test_gelu_and_a_prefetched_residual(device):
    m, n, k = 200, 128, 136

    def compute(acc, bias, residual):
        x = acc + bias
        half, root = tirx.const(0.5, "float32"), tirx.const(math.sqrt(0.5), "float32")
        return x * (half + tirx.erf(x * root) * half) + tirx.Cast("float32", residual)

    read = [("float32", (n,), (1,)), ("float16", (m, n), (0, 1))]
    epilogue = elementwise("float32", "float16", compute, read, 2)
    a, b, residual = (
        RNG.standard_normal(shape).astype("float16") for shape in ((m, k), (n, k), (m, n))
    )
    a /= 8
    bias = RNG.standard_normal(n).astype("float32")
    made = gemm(GemmProblem(m, n, k, epilogue=epilogue), SMALL)
    got = run_kernel(made, [a, b, bias, residual], (m, n), "float16", device)
    x = a.astype("f8") @ b.astype("f8").T + bias
    want = x * (0.5 + np.vectorize(math.erf)(x * math.sqrt(0.5)) * 0.5) + residual
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-3)


@pytest.mark.sample(1)
@pytest.mark.parametrize("channels", [3, 12, 80])
def test_convolutions(channels, device):
    check_conv(SMALL, 1, channels, "OHWI", device)


def test_the_warpgroups_take_turns():
    source = cuda_source(gemm(_problem(), SMALL))
    kernel = source[source.rindex("main_kernel(") :]
    # The first turn is given, each further one handed over.
    assert kernel.count("arrive_at(") == 2 and kernel.count("sync_threads_of(") == 1
    plain = cuda_source(gemm(_problem(), dataclasses.replace(SMALL, pingpong=False)))
    assert "arrive_at(" not in plain and "sync_threads_of(" not in plain


def test_the_main_loop_hides_the_epilogue():
    problem = GemmProblem(4096, 3072, 768)
    turns = gemm_config(stages=5, epilogue_buffers=1, pingpong=True)
    apart = dataclasses.replace(turns, consumer_warpgroups=1, pingpong=False)
    one, other = gemm_cost(problem, turns), gemm_cost(problem, apart)
    tiles = math.ceil(64 * 12 / 132)
    assert one.epilogue == other.epilogue
    # All epilogues but the last, less the turns; a warpgroup alone is slower.
    hidden = one.epilogue * (tiles - 1) / tiles + other.compute - one.compute
    assert other.cycles - one.cycles == pytest.approx(hidden, rel=0.15)


def test_ping_pong_hides_nothing_with_a_residual_or_for_small_tiles():
    residual = [("float16", (4096, 3072), (0, 1))]
    epilogue = elementwise("float32", "float16", lambda acc, r: acc + r, residual, 2)
    large = gemm_config(stages=5, epilogue_buffers=1, pingpong=True)
    plain = GemmProblem(4096, 3072, 768)
    for problem, turns in (
        (dataclasses.replace(plain, epilogue=epilogue), large),
        (plain, dataclasses.replace(large, tile_n=64)),
        (GemmProblem(4096, 3072, 16), large),  # the epilogue is longer than the main loop
    ):
        apart = dataclasses.replace(turns, consumer_warpgroups=1, pingpong=False)
        without_turns = dataclasses.replace(COSTS, pingpong_turn_cycles=0.0)
        one, other = gemm_cost(problem, turns, without_turns), gemm_cost(problem, apart)
        assert 0 <= other.cycles - one.cycles <= other.compute - one.compute
        assert gemm_cost(problem, turns).cycles > one.cycles


def test_gelu_makes_ping_pong_the_first_choice():
    def gelu(acc):
        half, root = tirx.const(0.5, "float32"), tirx.const(math.sqrt(0.5), "float32")
        return acc * (half + tirx.erf(acc * root) * half)

    epilogue = elementwise("float32", "float16", gelu, (), 2)
    problem = GemmProblem(4096, 3072, 768, epilogue=epilogue)
    assert gemm_configs(problem, H200)[0].hint.pingpong
    # One tile a thread block: there is nothing to overlap.
    assert not gemm_configs(GemmProblem(128, 4096, 4096), H200)[0].hint.pingpong
