"""float32 GEMM and convolution on Hopper's tensor cores, read as TF32: against NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.kernels.cuda.hopper.sources import (
    H200,
    compile_with_nvcc,
    conv_config,
    cuda_source,
    fitted,
    gemm_config,
)
from tests.kernels.cuda.hopper.test_kernels import run_kernel
from tests.kernels.cuda.products import Case, Conv
from tests.kernels.cuda.tf32 import truncated
from tvmopt.device.dtypes import TF32
from tvmopt.kernels.cuda.hopper.conv import conv
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.match import match
from tvmopt.kernels.cuda.hopper.problem import GemmProblem
from tvmopt.kernels.cuda.hopper.ranking import conv_configs, gemm_configs
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.tf32 import allow_tf32
from tvmopt.kernels.workload import Refusal

RNG = np.random.default_rng(5)
SMALL = fitted(gemm_config(consumer_warpgroups=1, tile_n=64, epilogue_buffers=1), "float32")
SMEM_STORE = dataclasses.replace(SMALL, tile_n=40, smem_store=True, persistent=False)
SPLIT = dataclasses.replace(SMEM_STORE, split_k=3)
SWAPPED = dataclasses.replace(SMEM_STORE, swap_ab=True, tile_n=16)
MULTICAST = fitted(gemm_config(tile_n=96, stages=4, cluster_m=2, epilogue_buffers=1), "float32")


def close(got, a, b, device) -> None:
    """Check a product: within TF32's tolerance; emulated, as of truncated operands."""
    want = a.astype("f8") @ b.astype("f8")
    assert np.abs(got - want).max() <= TF32.kernel_tolerance * np.abs(want).max()
    if device is None:
        np.testing.assert_allclose(got, truncated(a) @ truncated(b), rtol=1e-4, atol=1e-4)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({}, SMALL),
        ({"trans_b": False}, SMALL),
        ({"trans_a": True}, SMALL),
        ({"trans_a": True, "trans_b": False, "k": 131, "n": 263}, SMEM_STORE),
        ({"n": 263, "k": 77}, SMEM_STORE),
        ({"m": 300, "n": 96}, SPLIT),
        ({"m": 9}, SWAPPED),
        ({"m": 300, "n": 200}, MULTICAST),
        ({"batch": 3}, SMALL),
        ({"batch": 3, "trans_b": False, "batch_a": False}, SMALL),
        ({"dynamic": True, "trans_b": False}, SMALL),
    ],
)
def test_gemms(fields, config, device) -> None:
    p = GemmProblem(**{"m": 77, "n": 136, "k": 144, "dtype": "float32", "out": "float32", **fields})
    front = (p.batch,) if p.batch > 1 else ()
    a = RNG.standard_normal((*(front if p.batch_a else ()), p.m, p.k)).astype("float32")
    b = RNG.standard_normal((*front, p.k, p.n)).astype("float32")
    inputs = [
        np.ascontiguousarray(np.swapaxes(x, -1, -2)) if transposed else x
        for x, transposed in ((a, p.trans_a), (b, p.trans_b))
    ]
    got = run_kernel(gemm(p, config), inputs, (*front, p.m, p.n), "float32", device)
    close(got, a, b, device)


@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", ["OHWI", "HWIO"])
@pytest.mark.parametrize("channels", [3, 8, 16, 20, 40])
def test_convolutions(channels, layout, device) -> None:
    p = ConvProblem(
        2, 9, 7, channels, 40, padding=(1, 1, 1, 1), dtype="float32", out="float32", weight=layout
    )
    x = RNG.standard_normal((2, 9, 7, channels)).astype("float32")
    w = RNG.standard_normal((40, 3, 3, channels)).astype("float32")
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    columns = np.concatenate(
        [padded[:, r : r + 9, s : s + 7] for r in range(3) for s in range(3)], axis=-1
    ).reshape(-1, 9 * channels)
    given = w if layout == "OHWI" else np.ascontiguousarray(w.transpose(1, 2, 3, 0))
    got = run_kernel(conv(p, conv_config(SMALL)), [x, given], (2, 9, 7, 40), "float32", device)
    close(got.reshape(-1, 40), columns, w.reshape(40, -1).T, device)


def test_nvcc_compiles_the_instruction_without_spilling(tmp_path) -> None:
    problem = GemmProblem(512, 512, 512, "float32", "float32")
    source = cuda_source(gemm(problem, gemm_configs(problem, H200)[0].hint))
    assert "k8.f32.tf32.tf32" in source
    said = compile_with_nvcc(source, tmp_path)
    if said is None:
        pytest.skip("nvcc is not installed")
    assert "0 bytes spill stores" in said


def test_float32_matches_only_where_tf32_is_allowed() -> None:
    gemm_case, conv_case = Case("nt", 64, 64, 64), Conv("NHWC", 2, 7, 16, 8, 3, 1, 1)
    assert match(gemm_case.func()).problem.split_float32
    refused = match(conv_case.func())
    assert isinstance(refused, Refusal)
    assert refused.reason == "float32 operands need allow_tf32 for tensor cores"
    for case in (gemm_case, conv_case):
        assert match(allow_tf32(case.func())).problem.dtype == "float32"
    assert not match(allow_tf32(gemm_case.func())).problem.split_float32


@pytest.mark.parametrize(
    ("case", "exact_family", "family", "gain"),
    [
        (Case("nt", 2048, 2048, 2048), "hopper_gemm", "hopper_gemm", 2),
        (Case("nn", 2048, 2048, 2048), "hopper_gemm", "hopper_gemm", 2),
        (Conv("NHWC", 32, 28, 128, 128, 3, 1, 1), "gpu_winograd_conv", "hopper_conv", 3),
    ],
    ids=str,
)
def test_the_cost_model_prefers_tf32_where_allowed(case, exact_family, family, gain) -> None:
    exact, allowed = policy_of(case.func(), H200), policy_of(allow_tf32(case.func()), H200)
    assert exact.ranked[0].hint.template == exact_family
    assert allowed.ranked[0].hint.template == family
    assert allowed.cycles < exact.cycles / gain


def test_operands_that_are_not_k_major_cost_a_transposing_kernel() -> None:
    nt, nn = (GemmProblem(1024, 1024, 1024, "float32", "float32", trans_b=b) for b in (True, False))
    assert (nt.packed, nn.packed) == ((False, False), (False, True))
    assert gemm_configs(nt, H200)[0].cycles < gemm_configs(nn, H200)[0].cycles
    shape = (8, 14, 14, 64, 64)
    ohwi, hwio = (
        ConvProblem(*shape, dtype="float32", out="float32", weight=w) for w in ("OHWI", "HWIO")
    )
    assert conv_configs(ohwi, H200)[0].cycles < conv_configs(hwio, H200)[0].cycles
