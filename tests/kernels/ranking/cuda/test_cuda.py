"""CudaPolicy: every kind of function has configurations, of the templates made for it."""

from __future__ import annotations

import pytest
from tvm import te, tirx

from benchmarks.cuda_rows import SEED_ROWS, row
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.apply import GPU_TEMPLATES
from tvmopt.kernels.cuda.first_choice import first_kernel
from tvmopt.kernels.cuda.policy import CudaPolicy
from tvmopt.kernels.cuda.simt_policy import SimtPolicy
from tvmopt.kernels.policies import DefaultPolicy, policy_of

H200, A100 = GPUS["nvidia-h200"], GPUS["nvidia-a100"]


@pytest.mark.parametrize("name", SEED_ROWS)
def test_every_row_of_the_table_has_configurations(name) -> None:
    policy = CudaPolicy(row(name).func, H200)
    configs = policy.emit_config(20)
    assert policy.reason is None and len(configs) == 20 == len(set(configs))
    assert {config.template for config in configs} <= set(GPU_TEMPLATES)
    assert policy.cycles > 0
    made = first_kernel(row(name).func, H200)
    assert not isinstance(made, str)
    kernel, _ = made
    assert kernel.attrs["tirx.is_scheduled"]
    shapes = [list(map(int, p.shape)) for p in kernel.params]
    assert shapes == [list(map(int, p.shape)) for p in row(name).func.params]


@pytest.mark.parametrize(
    ("name", "arch", "template"),
    [
        ("matmul_nt-4096-4096-4096-float16", H200, "hopper_gemm"),
        ("matmul_nt-4096-4096-4096-float16", A100, "mma_matmul"),
        ("matmul_nt-4096-4096-4096-int8", H200, "hopper_gemm"),
        ("matmul_nn-1023-517-129-bfloat16", A100, "mma_matmul"),
        ("matmul_nn-1024-1024-1024-float32", H200, "simt_matmul"),
        ("conv2d-32-64-28-28-64-3-3-1-1-1-float16", H200, "hopper_conv"),
        ("gemv_i4-4096-4096-float16", H200, "gpu_int4"),
        ("sum-512-1024-float32", A100, "gpu_row_reduction"),
    ],
)
def test_the_first_choice_is_of_the_template_made_for_it(name, arch, template) -> None:
    assert CudaPolicy(row(name).func, arch).emit_config(1)[0].template == template


def test_a_function_without_a_template_says_why() -> None:
    size = tirx.Var("n", "int64")
    a = te.placeholder((size,), "float32", "A")
    func = te.create_prim_func([a, te.compute((size,), lambda i: a[i] + 1.0, "B")])
    policy = CudaPolicy(func, H200)
    assert policy.emit_config(3) == [] and policy.reason and policy.cycles == 0
    assert first_kernel(func, H200) == policy.reason


def test_a_device_has_its_policies() -> None:
    func = row("sum-64-128-float32").func
    assert isinstance(DefaultPolicy(func, H200), SimtPolicy)
    assert isinstance(policy_of(func, H200), CudaPolicy)


@pytest.mark.parametrize(
    ("name", "tried"),
    [
        ("matmul_nt-100-1000-16-int8", True),
        ("conv2d-4-3-64-64-64-3-3-1-1-1-float16", True),
        ("matmul_nt-1000-1000-1000-float16", False),
    ],
)
def test_products_by_warps_are_tried_where_columns_are_few_or_sums_short(name, tried) -> None:
    templates = [hint.template for hint in CudaPolicy(row(name).func, H200).emit_config(20)]
    assert templates[0].startswith("hopper") and len(templates) == 20
    assert ("mma_matmul" in templates) == tried
