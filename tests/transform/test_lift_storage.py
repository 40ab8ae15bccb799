"""Static memory planning: networks in caller-provided storage compute the same."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

from tvmopt.runtime.network import STORAGES
from tvmopt.transform.lift_storage import LiftStorage
from tvmopt.transform.merge_sizes import merge_sizes

TARGET = tvm.target.Target("llvm")


def _of_rows(rows):
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((rows, 8), "float32")):  # noqa: N805
            with R.dataflow():
                y = R.exp(x)
                z = R.multiply(y, y)
                w = R.add(z, x)
                out = (z, w)
                R.output(out)
            return out

    return Module


Straight = _of_rows(4)


@I.ir_module
class Dynamic:
    @R.function
    def main(x: R.Tensor(("n", 8), "float32")):  # noqa: N805
        with R.dataflow():
            y = R.exp(x)
            z = R.multiply(y, y)
            R.output(z)
        return z


@I.ir_module
class Branches:
    @R.function
    def main(x: R.Tensor((4, 8), "float32"), c: R.Tensor((), "bool")):  # noqa: N805
        if c:  # noqa: SIM108
            y = R.exp(x)
        else:
            y = R.negative(x)
        return y


def _planned(mod):
    """Return ``mod`` with explicit allocations."""
    passes = [relax.transform.LegalizeOps(), *pipeline.dataflow_lower_passes(TARGET)]
    finish = list(pipeline.finalize_passes(TARGET))
    names = [p.info.name for p in finish]
    cut = names.index("LowerAllocTensor") + 1
    if "If" in mod["main"].script() or "if c" in mod["main"].script():
        finish = [p for p in finish if p.info.name != "StaticPlanBlockMemory"]
        cut -= 1
    with TARGET:
        return tvm.transform.Sequential([*passes, *finish[:cut]])(mod), finish[cut:]


def test_runs_in_given_memory():
    planned, rest = _planned(Straight)
    lifted = LiftStorage()(planned)
    assert "alloc_storage" not in lifted["main"].script()
    count = planned["main"].script().count("alloc_storage(")
    assert lifted[STORAGES].script().count("alloc_storage(") == count > 2
    with TARGET:
        finished = tvm.transform.Sequential(rest)(lifted)
    executable = tvm.compile(finished, TARGET, relax_pipeline=tvm.transform.Sequential([]))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    assert machine.module.implements_function(STORAGES)
    storages = tuple(machine[STORAGES]())
    assert len(storages) == count
    for seed in range(2):
        x = np.random.default_rng(seed).standard_normal((4, 8)).astype("float32")
        first, second = machine["main"](tvm.runtime.tensor(x), *storages)
        np.testing.assert_allclose(first.numpy(), np.exp(x) ** 2, rtol=1e-5)
        np.testing.assert_allclose(second.numpy(), np.exp(x) ** 2 + x, rtol=1e-5, atol=1e-6)


def test_two_runs_share_the_memory():
    planned, rest = _planned(Straight)
    with TARGET:
        finished = tvm.transform.Sequential([LiftStorage(), *rest])(planned)
    machine = relax.VirtualMachine(
        tvm.compile(finished, TARGET, relax_pipeline=tvm.transform.Sequential([])), tvm.cpu()
    )
    storages = tuple(machine[STORAGES]())
    x = tvm.runtime.tensor(np.zeros((4, 8), "float32"))
    one = machine["main"](x, *storages)[1]
    machine["main"](tvm.runtime.tensor(np.ones((4, 8), "float32")), *storages)
    np.testing.assert_allclose(one.numpy(), np.exp(1.0) ** 2 + 1, rtol=1e-5)


def test_each_size_has_memory_of_its_own():
    planned, rest = _planned(merge_sizes([Straight, _of_rows(2)]))
    lifted = LiftStorage()(planned)
    for name in ("main", "main_1"):
        assert "alloc_storage" not in lifted[name].script()
        assert "alloc_storage" in lifted[name.replace("main", STORAGES)].script()
    with TARGET:
        finished = tvm.transform.Sequential(rest)(lifted)
    executable = tvm.compile(finished, TARGET, relax_pipeline=tvm.transform.Sequential([]))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    large, small = tuple(machine[STORAGES]()), tuple(machine[f"{STORAGES}_1"]())
    for name, rows, storages in (("main", 4, large), ("main_1", 2, small)):
        x = np.random.default_rng(rows).standard_normal((rows, 8)).astype("float32")
        first, second = machine[name](tvm.runtime.tensor(x), *storages)
        np.testing.assert_allclose(first.numpy(), np.exp(x) ** 2, rtol=1e-5)
        np.testing.assert_allclose(second.numpy(), np.exp(x) ** 2 + x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mod", [Dynamic, Branches])
def test_left_as_it_is(mod):
    planned, _ = _planned(mod)
    tvm.ir.assert_structural_equal(LiftStorage()(planned), planned)
