"""float32 GEMM by three TF32 products on Hopper's tensor cores: as exact as float32."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.kernels.cuda.hopper.sources import (
    H200,
    compile_with_nvcc,
    cuda_source,
    fitted,
    gemm_config,
)
from tests.kernels.cuda.hopper.test_kernels import run_kernel
from tests.kernels.cuda.products import Case, Conv
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.match import match
from tvmopt.kernels.cuda.hopper.problem import GemmProblem
from tvmopt.kernels.cuda.hopper.ranking import gemm_configs
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.tf32 import allow_tf32
from tvmopt.kernels.workload import Refusal

RNG = np.random.default_rng(6)
PLAIN = fitted(gemm_config(consumer_warpgroups=1, tile_n=64, epilogue_buffers=1), "float32")
SMALL = dataclasses.replace(PLAIN, parts=2)
SMEM_STORE = dataclasses.replace(SMALL, tile_n=40, smem_store=True, persistent=False)
SPLIT_K = dataclasses.replace(SMEM_STORE, split_k=3)
WORKSPACE = dataclasses.replace(SMALL, split_k=2, split_k_workspace=True)
SWAPPED = dataclasses.replace(SMEM_STORE, swap_ab=True, tile_n=16)
MULTICAST = dataclasses.replace(
    SMALL, consumer_warpgroups=2, tile_n=96, stages=3, cluster_m=2, epilogue_buffers=1
)
ONE_SUM = dataclasses.replace(SMALL, consumer_warpgroups=2, tile_n=192, stages=2)


def problem_of(**fields) -> GemmProblem:
    """Return a small problem of split float32 operands."""
    plain = {"m": 77, "n": 136, "k": 144, "dtype": "float32", "out": "float32"}
    return GemmProblem(**{**plain, "split_float32": True, **fields})


def multiplied(p: GemmProblem, config, a, b, device) -> np.ndarray:
    """Return what the kernel computes for A of (.., m, k) and B of (.., k, n)."""
    inputs = [
        np.ascontiguousarray(np.swapaxes(x, -1, -2)) if transposed else x
        for x, transposed in ((a, p.trans_a), (b, p.trans_b))
    ]
    front = (p.batch,) if p.batch > 1 else ()
    return run_kernel(gemm(p, config), inputs, (*front, p.m, p.n), p.out, device)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({}, SMALL),
        ({"trans_b": False}, SMALL),
        ({"trans_a": True}, SMALL),
        ({"trans_a": True, "trans_b": False, "k": 131, "n": 263}, SMEM_STORE),
        ({"n": 263, "k": 77}, SMEM_STORE),
        ({"k": 64}, SMALL),
        ({"m": 300, "n": 96}, SPLIT_K),
        ({"m": 300, "n": 96, "k": 300}, WORKSPACE),
        ({"m": 9}, SWAPPED),
        ({"m": 300, "n": 200}, MULTICAST),
        ({"m": 300, "n": 200, "k": 300}, ONE_SUM),
        ({"batch": 3}, SMALL),
        ({"batch": 3, "trans_b": False, "batch_a": False}, SMALL),
        ({"batch": 2, "trans_a": True, "k": 75}, SMALL),
    ],
)
def test_products_are_as_exact_as_float32(fields, config, device) -> None:
    p = problem_of(**fields)
    front = (p.batch,) if p.batch > 1 else ()
    a = RNG.standard_normal((*(front if p.batch_a else ()), p.m, p.k)).astype("float32")
    b = RNG.standard_normal((*front, p.k, p.n)).astype("float32")
    got = multiplied(p, config, a, b, device)
    want = a.astype("f8") @ b.astype("f8")
    # A few float32 roundings of the sum of magnitudes, of which TF32 itself is off by 2**-10.
    scale = np.abs(a.astype("f8")) @ np.abs(b.astype("f8"))
    assert np.all(np.abs(got - want) <= 3 * 2.0**-23 * scale)


def test_numbers_of_all_magnitudes(device) -> None:
    p = problem_of(k=64)
    a, b = (
        (RNG.standard_normal(shape) * 10.0 ** RNG.integers(-12, 12, shape)).astype("float32")
        for shape in ((p.m, p.k), (p.k, p.n))
    )
    a[3], b[:, 5] = 0.0, 0.0
    got = multiplied(p, SMALL, a, b, device)
    scale = np.abs(a.astype("f8")) @ np.abs(b.astype("f8"))
    # One product outweighs the others: off by the product of its low parts, up to 2**-20.
    assert np.all(np.abs(got - a.astype("f8") @ b.astype("f8")) <= 9 * 2.0**-23 * scale)
    assert not got[3].any() and not got[:, 5].any()


def test_infinities_and_nan_come_out_as_of_float32(device) -> None:
    p = problem_of(k=72)
    # Powers of two have no low part: an infinity must not meet its zero.
    a = (2.0 ** RNG.integers(-2, 3, (p.m, p.k)) * RNG.choice([-1, 1], (p.m, p.k))).astype("f4")
    b = (2.0 ** RNG.integers(-2, 3, (p.k, p.n)) * RNG.choice([-1, 1], (p.k, p.n))).astype("f4")
    a[2, 3], a[4, 39], a[6, 7], b[9, 8], b[10, 11] = np.inf, -np.inf, np.nan, np.inf, np.nan
    a[8, 0], b[0, 20] = np.inf, 0.0
    a[12].view("u4")[5] = 0x7F800001  # a NaN whose mantissa has only bits that TF32 lacks
    with np.errstate(invalid="ignore"):
        want = a @ b
    got = multiplied(p, SMALL, a, b, device)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    infinite = np.isinf(want)
    np.testing.assert_array_equal(got[infinite], want[infinite])
    assert np.isfinite(got[np.isfinite(want)]).all()


def test_sums_of_many_products_keep_float32s_accuracy(device) -> None:
    p = problem_of(m=64, n=64, k=2048)
    a, b = (RNG.random(shape).astype("float32") for shape in ((p.m, p.k), (p.k, p.n)))
    got = multiplied(p, SMALL, a, b, device)
    want = a.astype("f8") @ b.astype("f8")
    total = np.zeros_like(want, dtype="float32")
    for k in range(p.k):  # one multiply-add after the other
        total = (total + np.outer(a[:, k], b[k]).astype("f8")).astype("float32")
    assert np.abs(got - want).max() <= np.abs(total - want).max()


def test_float32_gemms_match_without_tf32_and_convolutions_do_not() -> None:
    case = Case("nt", 256, 256, 256)
    assert match(case.func()).problem.split_float32
    assert not match(allow_tf32(case.func())).problem.split_float32
    assert not match(Case("nt", 64, 64, 64, "float16").func()).problem.split_float32
    refused = match(Conv("NHWC", 2, 7, 16, 8, 3, 1, 1).func())
    assert isinstance(refused, Refusal)
    assert refused.reason == "float32 operands need allow_tf32 for tensor cores"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dynamic": True}, "static"),
        ({"k": 63}, "K = 64"),
        ({"m": 20_000_000, "n": 8, "k": 68}, "a copy of an operand"),
    ],
)
def test_refusals(fields, reason) -> None:
    assert reason in problem_of(**fields).refusal.reason
    assert dataclasses.replace(problem_of(**fields), split_float32=False).refusal is None


def test_registers_hold_the_sums_of_k_blocks() -> None:
    assert (SMALL.block_sums, ONE_SUM.block_sums) == (2, 1)
    wide = dataclasses.replace(ONE_SUM, tile_n=256)
    refused = wide.why_not(problem_of(m=512, n=512))
    assert refused.reason == "the accumulators of a K block and a tile exceed the registers"


@pytest.mark.parametrize("split", [True, False])
def test_a_stage_holds_the_parts_of_the_problem(split: bool) -> None:
    p = problem_of(m=512, n=512, split_float32=split)
    right, wrong = (SMALL, PLAIN) if split else (PLAIN, SMALL)
    assert right.why_not(p) is None
    assert wrong.why_not(p).reason.startswith(f"a stage holds {p.parts} parts")


@pytest.mark.sample(4)
@pytest.mark.parametrize("size", [1024, 4096])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_the_cost_model_prefers_tensor_cores(layout, size) -> None:
    ranked = policy_of(Case(layout, size, size, size).func(), H200).ranked
    assert ranked[0].hint.template == "hopper_gemm"
    ampere = policy_of(Case(layout, size, size, size).func(), GPUS["nvidia-a100"]).ranked
    assert ampere[0].hint.template == "simt_matmul"


def test_few_rows_are_not_worth_splitting_a_weight() -> None:
    ranked = policy_of(Case("nt", 4, 4096, 4096).func(), H200).ranked
    assert ranked[0].hint.template != "hopper_gemm"


def test_nvcc_compiles_without_spilling(tmp_path) -> None:
    problem = problem_of(m=4096, n=4096, k=4096)
    source = cuda_source(gemm(problem, gemm_configs(problem, H200)[0].hint))
    said = compile_with_nvcc(source, tmp_path)
    if said is None:
        pytest.skip("nvcc is not installed")
    assert "0 bytes spill stores" in said and "serialized" not in said
