"""A network is built even if the top-1 kernel of one of its functions does not compile."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tests.kernels.cuda.functions import lowered
from tvmopt.device.gpus import GPUS
from tvmopt.kernels import module_schedules
from tvmopt.kernels.cuda.replace_kernels import replace_kernels
from tvmopt.kernels.emit import SCHEDULED_ATTR
from tvmopt.kernels.module_schedules import schedule_module

op, nn = relax.op, relax.op.nn
A100 = GPUS["nvidia-a100"]


@pytest.fixture(scope="module")
def module() -> tvm.IRModule:
    functions = {
        "relu": lowered(nn.relu, ((64, 1000), "float16")),
        "softmax": lowered(lambda x: nn.softmax(x, -1), ((64, 1000), "float16")),
        "sums": lowered(lambda x: op.sum(x, 0), ((1000, 64), "float32")),
    }
    return tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()})


def test_a_kernel_that_does_not_compile_becomes_another(module: tvm.IRModule) -> None:
    after, served = schedule_module(module, A100)
    bad = after["softmax"]
    asked: list[int] = []

    def why_not_built(kernels: dict[str, tirx.PrimFunc]) -> str | None:
        asked.append(len(kernels))
        bodies = [k.body for k in kernels.values()]
        found = any(structural_equal(bad.body, b, map_free_vars=True) for b in bodies)
        return "no such type" if found else None

    out, others = replace_kernels(module, after, A100, why_not_built)
    assert list(others) == ["softmax"]
    assert others["softmax"].endswith(", as top-1 does not compile: no such type")
    assert others["softmax"].startswith("gpu_row_reduction")
    assert not structural_equal(out["softmax"].body, bad.body)
    assert out["softmax"].attrs[SCHEDULED_ATTR]
    assert structural_equal(out["relu"], after["relu"])
    assert set(served) == {"relu", "softmax", "sums"} and max(asked) == 3


def test_what_never_compiles_gets_the_default_rules(module: tvm.IRModule) -> None:
    after, _ = schedule_module(module, A100)
    out, others = replace_kernels(module, after, A100, lambda kernels: "no compiler")
    assert set(others) == {"relu", "softmax", "sums"}
    assert all(how.startswith("TVM's default rules") for how in others.values())
    assert "threadIdx.x" in out["relu"].script()


def test_modules_that_compile_stay(module: tvm.IRModule) -> None:
    after, _ = schedule_module(module, A100)
    out, others = replace_kernels(module, after, A100, lambda kernels: None)
    assert not others and structural_equal(out, after)


def test_a_fault_of_ours_costs_one_function(
    module: tvm.IRModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = module_schedules.schedule_function

    def fail(func: tirx.PrimFunc, arch: object) -> object:
        if str(func.attrs["global_symbol"]) == "sums":
            raise IndexError("list index out of range")
        return first(func, arch)  # type: ignore[arg-type]

    monkeypatch.setattr(module_schedules, "schedule_function", fail)
    out, served = schedule_module(module, A100)
    assert served["sums"] == "unscheduled: IndexError: list index out of range"
    assert served["relu"] == "gpu_elementwise"
    assert "threadIdx.x" in out["sums"].script()
