"""float32 GEMM and convolution with mma.sync, read as TF32: emulated, against NumPy."""

from __future__ import annotations

import dataclasses
import re
import shutil

import numpy as np
import pytest

from tests.emulator.cuda import ORDERS, run
from tests.kernels.cuda import serial
from tests.kernels.cuda.products import Case, Conv, error, inputs
from tests.kernels.cuda.tf32 import truncated
from tvmopt.device.dtypes import TF32
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.mma.config import MmaConfig
from tvmopt.kernels.cuda.mma.family import MmaMatmul
from tvmopt.kernels.cuda.tensor_core_policy import get_tensorized_func_and_tags
from tvmopt.kernels.emit import NotApplicable, emit_kernel
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.tf32 import allow_tf32, tf32_tolerance

A100, T4 = GPUS["nvidia-a100"], GPUS["nvidia-t4"]
PLAIN = MmaConfig(
    "mma_matmul", A100, tile=(32, 32), warp_tile=(16, 32), k_block=16, stages=3, async_copy=True
)
CONFIGS = {
    "pipelined": PLAIN,
    "packed": dataclasses.replace(PLAIN, pack_a=True, pack_b=True),
    "through registers": dataclasses.replace(PLAIN, stages=2, async_copy=False),
    "split": dataclasses.replace(PLAIN, split_k=2),
    "fragments ahead": dataclasses.replace(PLAIN, double_buffer_fragments=True),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("form", CONFIGS)
@pytest.mark.parametrize(
    "case",
    [
        Case("nt", 32, 64, 48),
        Case("nn", 37, 41, 29, bias=True),
        Case("tn", 37, 41, 29),
        Case("tt", 40, 48, 64, batch=2),
        Conv("NHWC", 2, 7, 3, 5, 3, 2, 1, bias=True),
        Conv("NCHW", 2, 7, 16, 8, 3, 1, 1),
    ],
    ids=str,
)
def test_right_within_tf32(case, form) -> None:
    func = allow_tf32(case.func())
    arrays = inputs(func)
    kernel = emit_kernel(func, CONFIGS[form])
    [got] = run(kernel, arrays, [serial.empty_of(func)], A100, order=ORDERS[0])
    assert error(got, case.numpy(arrays)) <= TF32.kernel_tolerance
    short = [truncated(a).astype("float32") for a in arrays[:2]] + arrays[2:]
    assert error(got, case.numpy(short)) <= 1e-6


@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_multiplies_by_the_instruction(layout) -> None:
    func = allow_tf32(Case(layout, 256, 256, 256).func())
    built = build_kernels({"main": emit_kernel(func, PLAIN)}, A100)
    source = built.imports[0].inspect_source("cuda")
    assert re.search(r"mma.sync.aligned.m16n8k8.*f32.tf32.tf32.f32", source)
    assert "ldmatrix.sync.aligned" in source and ".trans" not in source
    assert "cp.async" in source


def test_nvcc_compiles_it(tmp_path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    from tvmopt.kernels.cuda.toolchain.modules import embed_cubins

    func = allow_tf32(Case("nt", 256, 256, 256).func())
    with embed_cubins(A100):
        build_kernels({"main": emit_kernel(func, policy_of(func, A100).ranked[0].hint)}, A100)


def test_the_cost_model_prefers_tensor_cores_where_allowed() -> None:
    case = Case("nt", 2048, 2048, 2048)
    exact, allowed = policy_of(case.func(), A100), policy_of(allow_tf32(case.func()), A100)
    assert exact.ranked[0].hint.template == "simt_matmul"
    assert allowed.ranked[0].hint.template == "mma_matmul"
    assert allowed.cycles < exact.cycles / 3


def test_gpus_before_ampere_keep_float32() -> None:
    func = allow_tf32(Case("nt", 512, 512, 512).func())
    assert not T4.has_tf32 and A100.has_tf32
    assert {r.hint.template for r in policy_of(func, T4).ranked} == {"simt_matmul"}
    refusal = MmaMatmul().emit(func, dataclasses.replace(PLAIN, arch=T4))
    assert "nvidia-t4 has no mma.sync of tf32" in refusal.reason


def test_a_configuration_of_tensor_cores_does_not_fit_exact_float32() -> None:
    func = Case("nt", 64, 64, 64).func()
    with pytest.raises(NotApplicable, match="float32 operands need allow_tf32"):
        emit_kernel(func, PLAIN)
    assert get_tensorized_func_and_tags(func, A100)[1] is None
    assert get_tensorized_func_and_tags(allow_tf32(func), A100)[1] is not None


def test_only_float32_outputs_are_checked_with_the_tolerance_of_tf32() -> None:
    func = Case("nt", 64, 64, 64).func()
    assert tf32_tolerance(func) is None
    assert tf32_tolerance(allow_tf32(func)) == TF32.kernel_tolerance
    assert tf32_tolerance(allow_tf32(Case("nt", 64, 64, 64, "float16").func())) is None


def test_truncation_drops_thirteen_bits() -> None:
    values = np.array([1 + 2**-10, 1 + 2**-11, -(2**127 * (2 - 2**-23)), np.inf], "float32")
    np.testing.assert_array_equal(
        truncated(values), [1 + 2**-10, 1.0, -(2**127 * (2 - 2**-10)), np.inf]
    )
