"""Every kind of function has configurations of the families made for it."""

from __future__ import annotations

import pytest
from tvm import te, tirx

from benchmarks.cuda_rows import SEED_ROWS, row
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.emit import emit_kernel
from tvmopt.kernels.families import by_name
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.policies import DefaultPolicy, policy_of

H200, A100 = GPUS["nvidia-h200"], GPUS["nvidia-a100"]


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", SEED_ROWS)
def test_every_row_of_the_table_has_configurations(name) -> None:
    policy = policy_of(row(name).func, H200)
    configs = policy.emit_config(20)
    assert policy.reason is None and len(configs) == 20 == len(set(configs))
    assert {config.template for config in configs} <= set(by_name())
    assert policy.cycles > 0
    made = schedule_function(row(name).func, H200)
    assert made.hint is not None, made.rule
    kernel = made.func
    assert kernel.attrs["tirx.is_scheduled"]
    shapes = [list(map(int, p.shape)) for p in kernel.params]
    assert shapes == [list(map(int, p.shape)) for p in row(name).func.params]


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("name", "arch", "template"),
    [
        ("matmul_nt-4096-4096-4096-float16", H200, "hopper_gemm"),
        ("matmul_nt-4096-4096-4096-float16", A100, "mma_matmul"),
        ("matmul_nt-4096-4096-4096-int8", H200, "hopper_gemm"),
        ("matmul_nn-1023-517-129-bfloat16", A100, "mma_matmul"),
        ("matmul_nn-1024-1024-1024-float32", H200, "hopper_gemm"),
        ("matmul_nn-1024-1024-1024-float32", A100, "simt_matmul"),
        ("conv2d-32-64-28-28-64-3-3-1-1-1-float16", H200, "hopper_conv"),
        ("gemv_i4-4096-4096-float16", H200, "gpu_int4"),
        ("sum-512-1024-float32", A100, "gpu_row_reduction"),
    ],
)
def test_the_first_choice_is_of_the_template_made_for_it(name, arch, template) -> None:
    assert policy_of(row(name).func, arch).emit_config(1)[0].template == template


def test_a_function_without_a_template_says_why() -> None:
    size = tirx.Var("n", "int64")
    a = te.placeholder((size,), "float32", "A")
    func = te.create_prim_func([a, te.compute((size,), lambda i: a[i] + 1.0, "B")])
    policy = policy_of(func, H200)
    assert policy.emit_config(3) == [] and policy.reason and policy.cycles == 0
    assert schedule_function(func, H200).rule == f"unscheduled: {policy.reason}"


def test_a_device_has_its_policies() -> None:
    func = row("sum-64-128-float32").func
    product = row("matmul_nt-1024-1024-1024-float16").func
    assert DefaultPolicy(func, H200).emit_config(3) == policy_of(func, H200).emit_config(3)
    assert policy_of(product, H200).emit_config(1)[0].template == "hopper_gemm"
    assert DefaultPolicy(product, H200).emit_config(1)[0].template == "gpu_row_reduction"


@pytest.mark.parametrize(
    ("name", "first", "tried"),
    [
        ("matmul_nt-100-1000-16-int8", "mma_matmul", True),
        ("matmul_nt-200-1000-32-float16", "mma_matmul", True),
        # wgmma has a tile of 8 columns.
        ("conv2d-8-64-160-160-32-3-3-1-1-1-float16", "hopper_conv", False),
        ("matmul_nt-1000-1000-1000-float16", "hopper_gemm", False),
    ],
)
def test_mma_sync_is_tried_where_the_reduction_is_short(name, first, tried) -> None:
    templates = [hint.template for hint in policy_of(row(name).func, H200).emit_config(20)]
    assert templates[0] == first and len(templates) == 20
    assert ("mma_matmul" in templates) == tried


@pytest.mark.parametrize("images", [4, 5])
def test_a_pipeline_loads_fused_axes_ahead_in_whole_runs(images) -> None:
    # K is 8 x 8 x 3: vectors of 8 elements lie over two axes of 24 elements. Loaded ahead by other
    # multiples, their indices were vectors that TVM's CUDA code generator refuses.
    func = row(f"conv2d-{images}-64-64-64-3-8-8-8-1-0-float16").func
    hints = [r.hint for r in policy_of(func, H200).ranked if r.hint.template == "mma_matmul"]
    unpacked = [hint for hint in hints if not hint.pack_a]
    assert unpacked and all((hint.stages - 1) * hint.k_block % 24 == 0 for hint in unpacked)
    # The code generator raises where an index is such a vector.
    first = next(hint for hint in unpacked if hint.async_copy)
    assert build_kernels({"main": emit_kernel(func, first)}, H200).imports
