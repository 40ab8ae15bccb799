"""Early triggers of dependent launches: small kernels beside a GEMV that loads before it waits."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx

from benchmarks.cuda_rows import row
from tests.kernels.cuda.functions import int4_product
from tests.kernels.cuda.serial import H200, hint
from tvmopt.kernels.cuda.common.passes import PASS_CONFIG
from tvmopt.kernels.cuda.pipeline import PIPELINE
from tvmopt.kernels.emit import emit_kernel
from tvmopt.kernels.policies import policy_of

TRIGGER, WAIT = "tvmopt_let_next_kernel_start();", "tvmopt_wait_for_kernel_before();"
GEMV = hint("gpu_int4", tile=16, warp_tile=16, reduce_warps=4, stages=3)
#: A reduction by 1,024 threads, a matmul by 128 blocks with a ring of stages, a copy by all SMs.
SMALL, SHARED, LARGE = (
    "sum-8-1024-float32",
    "matmul_nt-512-512-512-float16",
    "add-8192-8192-float32",
)


def sources(constant: bool, *rows: str) -> dict[str, str]:
    """Return the CUDA text of each kernel in a module of ``rows`` and two int4 GEMVs."""
    product = int4_product(1, 64, 1024, 32)
    if constant:
        product = product.with_attr("layout_free_buffers", [1, 2])
    kernels = {"gemv": emit_kernel(product, GEMV)}
    # 200 thread blocks with shared memory, and weights that a kernel may write.
    kernels["many"] = emit_kernel(int4_product(1, 3200, 1024, 32), GEMV)
    for name in rows:
        func = row(name).func
        [config] = policy_of(func, H200).emit_config(1)
        kernels[name.partition("-")[0]] = emit_kernel(func, config)
    mod = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in kernels.items()})
    with tvm.transform.PassContext(config=PASS_CONFIG):
        source = (
            tirx.build(mod, target=H200.to_tvm(), pipeline=PIPELINE).imports[0].inspect_source()
        )
    parts = source.split('extern "C" __global__ ')
    return {n: next(p for p in parts if f" {n}_kernel(" in p and "{" in p) for n in kernels}


def test_a_small_kernel_triggers_before_it_waits() -> None:
    text = sources(True, SMALL)["sum"]
    assert text.count(TRIGGER) == 1 and text.index(TRIGGER) < text.index(WAIT)


def test_the_gemv_itself_triggers_only_by_its_configuration() -> None:
    assert TRIGGER not in sources(True, SMALL)["gemv"]


def test_without_early_loads_nothing_changes() -> None:
    assert all(TRIGGER not in text for text in sources(False, SMALL).values())


@pytest.mark.parametrize(("name", "triggers"), [(SHARED, True), (LARGE, False)])
def test_a_kernel_triggers_if_it_leaves_room(name: str, triggers: bool) -> None:
    assert (TRIGGER in sources(True, name)[name.partition("-")[0]]) == triggers


def test_several_blocks_of_shared_memory_on_an_sm_leave_no_room() -> None:
    text = sources(True)["many"]
    assert TRIGGER not in text and WAIT in text
