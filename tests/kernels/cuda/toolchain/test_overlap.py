"""Programmatic dependent launch: our kernels wait and are launched early, other kernels neither."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import tirx

from benchmarks.cuda_rows import SEED_ROWS, row
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.common.passes import PASS_CONFIG
from tvmopt.kernels.cuda.default_kernels import default_kernels
from tvmopt.kernels.cuda.pipeline import PIPELINE
from tvmopt.kernels.cuda.toolchain.dependent_launch import launched_early, waiting
from tvmopt.kernels.emit import emit_kernel
from tvmopt.kernels.policies import policy_of

H200, A100 = GPUS["nvidia-h200"], GPUS["nvidia-a100"]
PARAMS, SHARED = "tirx.kernel_launch_params", "tirx.use_dyn_shared_memory"
EARLY = "tirx.use_programtic_dependent_launch"
WAIT = "tvmopt_wait_for_kernel_before();"
# Operand copies before the kernel; cluster split-K; workspace split-K with a reduction kernel.
MORE = (
    "matmul_nt-1001-1001-1001-float16", "matmul_nn-64-64-16384-float32",
    "matmul_nn-256-256-16384-float16", "conv2d-2-3-14-14-512-3-3-1-1-1-float16",
)  # fmt: skip


def kernels_of(func, arch):
    """Return the device functions of a kernel by name, and their CUDA source."""
    found = {}

    @tvm.instrument.pass_instrument
    class Watch:
        def run_after_pass(self, mod, info):
            if info.name == "MixedPipeline":
                for var, f in mod.functions_items():
                    if isinstance(f, tirx.PrimFunc) and PARAMS in (f.attrs or {}):
                        found[var.name_hint] = f

    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with tvm.transform.PassContext(config=PASS_CONFIG, instruments=[Watch()]):
        built = tvm.tirx.build(mod, target=arch.to_tvm(), pipeline=PIPELINE)
    return found, built.imports[0].inspect_source()


def bodies(source):
    """Return the text of each kernel in CUDA source."""
    parts = re.split(r'extern "C" __global__ [^;{]*\{', source)
    return parts[1:]


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", [*SEED_ROWS, *MORE])
def test_every_kernel_waits_once_and_is_launched_early(name) -> None:
    policy = policy_of(row(name).func, H200)
    one_each = {r.hint.template: r.hint for r in reversed(policy.ranked)}
    for hint in one_each.values():
        found, source = kernels_of(emit_kernel(row(name).func, hint), H200)
        assert found
        for func in found.values():
            tags = [str(tag) for tag in func.attrs[PARAMS]]
            assert tags.count(EARLY) == 1
            assert SHARED not in tags[:-1]
        texts = bodies(source)
        assert len(texts) == len(found)
        for text in texts:
            assert text.count(WAIT) == 1
            before = text.partition(WAIT)[0]
            # Before the wait, Hopper kernels initialise their own state; other kernels do nothing.
            assert hint.template.startswith("hopper") or not before.strip()
            assert "cp_async_bulk" not in before


def test_older_gpus_have_nothing_to_wait_with() -> None:
    for name in ("sum-512-1024-float32", "matmul_nt-512-512-512-float16"):
        func = row(name).func
        [hint] = policy_of(func, A100).emit_config(1)
        found, source = kernels_of(emit_kernel(func, hint), A100)
        assert found and WAIT not in source
        assert all(EARLY not in map(str, f.attrs[PARAMS]) for f in found.values())


def test_tvms_own_schedules_are_left_alone() -> None:
    func = row("sum-512-1024-float32").func
    kernel = default_kernels(tvm.IRModule({"main": func}), H200)["main"]
    found, source = kernels_of(kernel, H200)
    assert found and WAIT not in source
    assert all(EARLY not in map(str, f.attrs[PARAMS]) for f in found.values())


def test_both_changes_are_made_once() -> None:
    func = row("sum-512-1024-float32").func
    [hint] = policy_of(func, H200).emit_config(1)
    [kernel] = kernels_of(emit_kernel(func, hint), H200)[0].values()
    tvm.ir.assert_structural_equal(launched_early(waiting(kernel)), kernel)


def test_a_kernel_that_does_not_wait_is_not_launched_early() -> None:
    func = row("sum-512-1024-float32").func
    kernel = default_kernels(tvm.IRModule({"main": func}), H200)["main"]
    [lowered] = kernels_of(kernel, H200)[0].values()
    tvm.ir.assert_structural_equal(launched_early(lowered), lowered)
    assert EARLY in map(str, launched_early(waiting(lowered)).attrs[PARAMS])
