"""Integer depthwise convolutions with dot products: results, instructions, refusals."""

from __future__ import annotations

import dataclasses
import re

import hypothesis
import numpy as np
import pytest
import tvm
from hypothesis import strategies as st

from tests import emulator
from tests.kernels.cpu.candidates import cases, check_numbers
from tests.kernels.cpu.contract import assert_replays, assert_survives_json
from tests.kernels.cpu.depthwise import (
    ByteDepthwise,
    assembly,
    configurations,
    emulated_dots,
    refusal,
)
from tests.kernels.cpu.harness import TARGET
from tvmopt import host
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.cpu.intrinsics import instructions_used
from tvmopt.kernels.cpu.intrinsics.tap_dots import find_tap_dot
from tvmopt.kernels.emit import NotApplicable, emit
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.measure.split import split_packing

__all__ = ["emulated_dots"]

_SETTINGS = hypothesis.settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
# CPU, dtype of the data, instruction, funnel shift.
INSTRUCTIONS = [
    ("sapphirerapids", "uint8", "vpdpbusd", True),
    ("znver4", "int8", "vpdpbusd", True),
    ("cascadelake", "uint8", "vpdpbusd", False),
    ("alderlake", "uint8", "vpdpbusd", False),
    ("sierraforest", "int8", "vpdpbssd", False),
    ("skylake-avx512", "uint8", "vpmaddwd", False),
    ("haswell", "int8", "vpmaddwd", False),
    ("graviton3", "uint8", "usdot", False),
    ("cortex-a76", "uint8", "sdot", False),
    ("cortex-a76", "int8", "sdot", False),
]
CASES = {
    "3x3": ByteDepthwise(pad=1, batch=2),
    "3x3, stride 2, int8": ByteDepthwise(stride=(2, 2), pad=1, data="int8"),
    "5x5": ByteDepthwise((5, 5), pad=2),
    "5x5, stride 2": ByteDepthwise((5, 5), (2, 2), size=(11, 13)),
    "7x7": ByteDepthwise((7, 7), pad=3),
    "4x6, int8": ByteDepthwise((4, 6), (2, 1), data="int8"),
    "2x2, stride 2": ByteDepthwise((2, 2), (2, 2), size=(8, 8)),
    "1x5": ByteDepthwise((1, 5)),
    "5x1": ByteDepthwise((5, 1), pad=2),
    "5x1, stride 2": ByteDepthwise((5, 1), (2, 2)),
    "one column": ByteDepthwise(size=(9, 3)),
    "one row": ByteDepthwise(size=(3, 14), data="int8"),
}
# Of an instruction that this CPU lacks, every second case; this CPU's own has all of them.
EMULATED = [
    *(("sapphirerapids", name) for name in list(CASES)[::2]),
    *(("alderlake", name) for name in ("5x5", "one row")),
    *(("skylake-avx512", name) for name in ("4x6, int8", "5x1")),
    *(("sierraforest", name) for name in ("3x3, stride 2, int8",)),
]


def _check(case: ByteDepthwise, cpu: str = "host") -> None:
    """Compare the first and the last configuration for ``cpu`` with NumPy."""
    arch = resolve_target(cpu, 2).arch()
    [given] = cases(case.drawn(), TARGET)
    hints = configurations(given.func, arch)
    assert hints
    schedules = []
    for hint in dict.fromkeys((hints[0], hints[-1])):
        assert_survives_json(hint)
        schedule = emit(given.func, hint)
        assert_replays(schedule, given.func)
        schedules.append(schedule.mod["main"])
    # A lower optimisation level halves the compile time.
    check_numbers(given, schedules, resolve_target("host", 2).to_tvm(opt_level=1))


@pytest.mark.sample(2)
@pytest.mark.skipif(host.isa() != "x86_64", reason="an instruction of x86 is emulated")
@pytest.mark.parametrize(("cpu", "name"), EMULATED)
@pytest.mark.usefixtures("emulated_dots")
def test_results_with_the_instruction_of_another_cpu(cpu: str, name: str) -> None:
    _check(CASES[name], cpu)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CASES)
def test_results_with_the_instruction_of_this_cpu(name: str) -> None:
    _check(CASES[name])


@pytest.mark.slow
@_SETTINGS
@hypothesis.given(
    kernel=st.tuples(st.integers(1, 7), st.integers(1, 7)).filter(lambda k: k != (1, 1)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    size=st.tuples(st.integers(7, 15), st.integers(7, 15)),
    pad=st.integers(0, 2),
    vectors=st.integers(1, 3),
    batch=st.integers(1, 2),
    data=st.sampled_from(["uint8", "int8"]),
)
@pytest.mark.skipif(host.isa() != "x86_64", reason="an instruction of x86 is emulated")
@pytest.mark.usefixtures("emulated_dots")
def test_any_shape(kernel, stride, size, pad, vectors, batch, data) -> None:
    case = ByteDepthwise(kernel, stride, pad, size, 16 * vectors, batch, data)
    _check(case, "sapphirerapids")


@pytest.mark.sample(3)
@pytest.mark.parametrize(("cpu", "data", "instruction", "funnel"), INSTRUCTIONS)
def test_instructions_of_a_cpu(cpu: str, data: str, instruction: str, funnel: bool) -> None:
    target = resolve_target(cpu, 2)
    func = ByteDepthwise(size=(8, 34), channels=64, data=data).function()
    scheduled = finish(emit(func, configurations(func, target.arch())[0]).mod["main"], func)
    assert instructions_used(scheduled) == (instruction,)
    text = assembly(split_packing(scheduled).compute, target.to_tvm())
    assert instruction in text
    assert bool(re.search(r"vpsh[lr]dd", text)) == funnel


def test_a_row_of_outputs_takes_one_dot_product_per_input_row_and_no_spills() -> None:
    target = resolve_target("sapphirerapids", 1)
    func = ByteDepthwise(size=(6, 34), channels=16).function()
    [hint, *_] = configurations(func, target.arch())
    hint = dataclasses.replace(hint, register_tile=(1, 4, 32, 16))
    scheduled = finish(emit(func, hint).mod["main"], func)
    text = assembly(split_packing(scheduled).compute, target.to_tvm())
    loop = next(part for part in re.split(r"\n\.LBB\w+:", text) if "vpdpbusd" in part)
    assert loop.count("vpdpbusd") == 4 * 3
    assert len(re.findall("vpsh[lr]dd", loop)) == loop.count("vpmovzxbd") == 6
    assert "rsp" not in loop


@pytest.mark.sample(3)
@pytest.mark.parametrize("cpu", ["cortex-a76", "graviton3"])
@pytest.mark.parametrize("data", ["uint8", "int8"])
@pytest.mark.parametrize("name", ["5x5", "3x3, stride 2, int8", "5x1"])
def test_results_under_emulation(name: str, cpu: str, data: str) -> None:
    tools = emulator.find_tools("aarch64")
    if isinstance(tools, str):
        pytest.skip(tools)
    target = resolve_target(cpu, 2)
    case = dataclasses.replace(CASES[name], data=data)
    [given] = cases(case.drawn(), TARGET)
    hint = configurations(given.func, target.arch())[0]
    scheduled = finish(emit(given.func, hint).mod["main"], given.func)
    mod = tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")})
    built = tvm.tirx.build(mod, target=target.to_tvm(), pipeline="s_tir")
    out = np.full(given.expected.shape, 77, np.int32)
    [got] = emulator.run(built, given.inputs, [out], "aarch64")
    np.testing.assert_array_equal(got, given.expected.astype(np.int32))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (ByteDepthwise(dilation=2), "dilated"),
        (ByteDepthwise(stride=(3, 1)), "stride is not 1 or 2"),
        (ByteDepthwise((9, 1), size=(9, 9)), "more than 7"),
        (ByteDepthwise(channels=24), "24 channels are not whole vectors of 16"),
    ],
)
def test_refused(case: ByteDepthwise, reason: str) -> None:
    arch = resolve_target("sapphirerapids", 2).arch()
    assert reason in refusal(case.function(), arch)


def test_a_weight_that_is_no_constant_is_refused() -> None:
    func = ByteDepthwise().function().without_attr("layout_free_buffers")
    assert "not constant" in refusal(func, resolve_target("sapphirerapids", 2).arch())


def test_a_cpu_without_an_instruction_is_refused() -> None:
    arch = resolve_target("raspberry-pi-4", 2).arch()
    assert find_tap_dot(arch, "uint8") is None
    assert "no dot-product instruction" in refusal(ByteDepthwise().function(), arch)


def test_a_tile_that_does_not_divide_the_output_is_refused() -> None:
    func = ByteDepthwise().function()
    arch = resolve_target("sapphirerapids", 2).arch()
    hint = configurations(func, arch)[0]
    for tile, reason in (((1, 2, 12, 16), "does not divide"), ((1, 1, 12, 8), "vectors")):
        with pytest.raises(NotApplicable, match=reason):
            emit(func, dataclasses.replace(hint, register_tile=tile))
    with pytest.raises(NotApplicable, match="is not the instruction"):
        emit(func, dataclasses.replace(hint, intrinsic="pmaddwd256"))


@pytest.mark.parametrize("cpu", ["sapphirerapids", "haswell", "cortex-a76"])
def test_it_is_the_first_choice(cpu: str) -> None:
    func = ByteDepthwise((5, 5), size=(54, 42), channels=128).function()
    ranked = DefaultPolicy(func, resolve_target(cpu, 2).arch()).ranked
    assert ranked[0].hint.template == "depthwise_dot"
