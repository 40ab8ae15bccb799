"""Plans: a layout and an algorithm per layer, with the same results."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import strategies as st
from tvm import relax, tirx

from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.transform.anchors import anchors
from tvmopt.transform.layer_functions import lower_by_layer
from tvmopt.transform.lower import lower
from tvmopt.transform.plan import (
    Implementation,
    free_layouts,
    implementations,
    modelled_plan,
    read_plan,
    write_plan,
)
from tvmopt.transform.prepack import prepack
from tvmopt.transform.winograd import cpu_rule

from .plan_net import WEIGHTS, inputs, residual_net, residual_net_numpy

SPEC = resolve_target("host", 2)
TARGET = SPEC.to_tvm()
RULE = cpu_rule(TARGET)
DIRECT, W2, W4 = (Implementation("", name) for name in ("direct", "winograd2", "winograd4"))
BLOCKED = Implementation("NCHW16c")


@pytest.fixture(scope="module")
def net() -> tvm.IRModule:
    mod = residual_net()
    free_layouts(mod)
    return mod


def run(lowered: tvm.IRModule) -> np.ndarray:
    scheduled, _ = schedule_module(lowered, SPEC.arch())
    with tvm.transform.PassContext(opt_level=3):
        executable = tvm.compile(prepack(scheduled), TARGET)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](tvm.runtime.tensor(inputs())).numpy()


def functions(mod: tvm.IRModule) -> set[int]:
    """Return hashes of the TensorIR functions, independent of their names."""
    return {
        tvm_ffi.structural_hash(func.without_attr("global_symbol"))
        for _, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def test_the_ways_of_each_layer(net) -> None:
    assert implementations(net, RULE) == {
        0: [DIRECT, W2, W4, BLOCKED],
        1: [DIRECT, BLOCKED],
        2: [DIRECT, BLOCKED],
        3: [DIRECT, BLOCKED],
    }


def test_a_layout_that_was_asked_for_is_kept() -> None:
    assert implementations(residual_net(), RULE) == {0: [DIRECT, W2, W4]}
    mod = residual_net()
    free_layouts(mod, kept=[1, 2])
    assert implementations(mod, RULE) == {0: [DIRECT, W2, W4, BLOCKED], 3: [DIRECT, BLOCKED]}


WAYS = {
    layer: st.sampled_from([Implementation(), *ways])
    for layer, ways in {
        0: [DIRECT, W2, W4, BLOCKED], 1: [DIRECT, BLOCKED], 2: [BLOCKED], 3: [DIRECT, BLOCKED],
    }.items()
}  # fmt: skip


@hypothesis.settings(max_examples=3, deadline=None, derandomize=True)
@hypothesis.given(st.fixed_dictionaries({}, optional=WAYS))
def test_every_plan_computes_the_same(net, plan) -> None:
    lowered = lower(net, TARGET, plan=plan)
    np.testing.assert_allclose(run(lowered), residual_net_numpy(inputs()), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "plan", [{}, {0: W4}, {0: DIRECT, 2: BLOCKED}, dict.fromkeys(range(4), BLOCKED)], ids=str
)
def test_functions_record_their_layer_and_are_otherwise_equal(net, plan) -> None:
    found = lower_by_layer(net, TARGET, plan)
    assert functions(found.mod) == functions(lower(net, TARGET, plan=plan))
    assert sorted(found.layer_of.values()) == [0, 1, 2, 3]
    for var, func in found.mod.functions_items():
        if var.name_hint not in found.layer_of:
            continue
        layer = found.layer_of[var.name_hint]
        sizes = [np.prod([int(e) for e in p.shape]) for p in func.params]
        weight = WEIGHTS[layer]
        points = {W2: 16, W4: 36}.get(plan.get(layer), weight.shape[0] * weight.shape[1])
        if layer == 0 and layer not in plan:
            continue  # as the cost model predicts
        assert points * weight.shape[2] * weight.shape[3] in sizes
        assert "tvmopt.layer" not in (func.attrs or {})


def test_a_plan_decides_against_the_model(net) -> None:
    names = [v.name_hint for v, _ in lower(net, TARGET, plan={0: W2}).functions_items()]
    assert any("winograd" in name for name in names)
    names = [v.name_hint for v, _ in lower(net, TARGET, plan={0: DIRECT}).functions_items()]
    assert not any("winograd" in name for name in names)


def test_plans_are_read_as_written(tmp_path) -> None:
    plan = {7: BLOCKED, 0: W4}
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan
    assert read_plan(tmp_path / "none.json") == {}


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm must be one of direct.*but got 'fft'"):
        Implementation("", "fft")


def test_the_models_plan_is_what_lowering_does_by_itself(net) -> None:
    plan = modelled_plan(net, RULE)
    assert set(plan) == {anchor.index for anchor in anchors(net) if anchor.op == "nn.conv2d"}
    planned, alone = lower(net, TARGET, plan=plan), lower(net, TARGET)
    tvm.ir.assert_structural_equal(planned, alone)
