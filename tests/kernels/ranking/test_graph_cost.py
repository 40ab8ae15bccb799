"""Predicted cost of a network, and the layout chosen by it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.kernels.ranking.functions import ARCH, SPEC, module
from tvmopt.device.target import resolve_target
from tvmopt.kernels.graph_cost import modelled_cycles
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.stages import auto_layout
from tvmopt.stages.auto_layout import choose_layout, measured_seconds
from tvmopt.transform.layout import convert_layout
from tvmopt.transform.lower import lower

op, nn = relax.op, relax.op.nn


def _cycles(mod: tvm.IRModule) -> dict[str, float]:
    return {
        var.name_hint: DefaultPolicy(func, ARCH).cycles
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def test_every_call_counts() -> None:
    def body(x, w):
        for _ in range(3):
            x = nn.relu(op.matmul(x, w))
        return nn.softmax(x)

    mod = module(body, (32, 64), (64, 64))
    cycles = _cycles(mod)
    assert len(cycles) == 2
    matmul = next(c for name, c in cycles.items() if "matmul" in name)
    softmax = next(c for name, c in cycles.items() if "softmax" in name)
    assert modelled_cycles(mod, ARCH) == pytest.approx(3 * matmul + softmax)


def test_a_function_that_nobody_calls_costs_nothing() -> None:
    mod = module(lambda x: nn.relu(x), (32, 64))
    before = modelled_cycles(mod, ARCH)
    [func] = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    mod[tvm.ir.GlobalVar("unused")] = func
    assert modelled_cycles(mod, ARCH) == before > 0


def test_a_function_without_a_schedule_still_costs() -> None:
    mod = module(lambda x: op.sort(x), (64, 200))
    assert modelled_cycles(mod, ARCH) > 0


def test_more_cores_cost_less_in_a_large_network() -> None:
    mod = module(op.matmul, (512, 512), (512, 512))
    one = dataclasses.replace(ARCH, cores=1)
    assert modelled_cycles(mod, ARCH) < modelled_cycles(mod, one)


def _network(body, shape: tuple[int, ...]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, x))
        builder.emit_func_output(out)
    return builder.get()


def _convolutions(emit, x):
    rng = np.random.default_rng(0)
    for inputs, outputs in ((3, 32), (32, 64), (64, 64)):
        w = relax.const(rng.standard_normal((outputs, inputs, 3, 3), np.float32))
        x = emit(nn.relu(emit(nn.conv2d(x, w, padding=1))))
    return emit(op.mean(x, [2, 3]))


def test_channels_go_last_in_a_network_of_convolutions() -> None:
    plain = _network(_convolutions, (1, 3, 28, 28))
    asked: list[str] = []

    def convert(layout: str) -> tvm.IRModule:
        asked.append(layout)
        return plain if layout == "NCHW" else convert_layout(plain, {"nn.conv2d": layout})

    assert choose_layout(convert, SPEC).name == "NHWC"
    assert sorted(asked) == ["NCHW", "NHWC"]


@pytest.mark.parametrize("faster", ["NHWC", "NCHW"])
def test_layouts_modelled_alike_are_timed(monkeypatch, faster: str) -> None:
    timed: list[list[str]] = []

    def seconds(lowered, target):
        timed.append(list(lowered))
        return {layout: 1.0 if layout == faster else 2.0 for layout in lowered}

    plain = _network(_convolutions, (1, 3, 28, 28))
    spec = resolve_target("host", 2)
    monkeypatch.setattr(auto_layout, "modelled_cycles", lambda mod, arch: 100.0)
    monkeypatch.setattr(auto_layout, "measured_seconds", seconds)

    def convert(layout: str) -> tvm.IRModule:
        return plain if layout == "NCHW" else convert_layout(plain, {"nn.conv2d": layout})

    assert choose_layout(convert, spec).name == faster
    assert timed == [["NHWC", "NCHW"]]
    # Code that this machine cannot run is not timed.
    other = resolve_target("znver5", 2)
    if other.missing_on_host():
        assert choose_layout(convert, other).name == "NHWC"
    assert len(timed) == 1


@pytest.mark.alone
def test_whole_networks_are_timed_side_by_side() -> None:
    spec = resolve_target("host", 2)
    small, large = (
        lower(_network(_convolutions, (1, 3, size, size)), spec.to_tvm()) for size in (8, 56)
    )
    seconds = measured_seconds({"small": small, "large": large}, spec)
    assert 0 < seconds["small"] < seconds["large"] < 1


def test_a_network_without_convolutions_stays_as_it_is() -> None:
    w = np.random.default_rng(0).standard_normal((64, 32), np.float32)
    plain = _network(lambda emit, x: emit(op.matmul(x, relax.const(w))), (4, 64))
    asked: list[str] = []

    def convert(layout: str) -> tvm.IRModule:
        asked.append(layout)
        return plain

    assert choose_layout(convert, SPEC).name == "NCHW"
    assert asked == ["NCHW"]
