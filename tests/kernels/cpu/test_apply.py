"""Tests of scheduling a whole module: untouched functions, refusals, parallel and vector loops."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, tirx

from tests.kernels.cpu.harness import (
    ARCH,
    apply_template,
    check,
    loop_kinds,
    lower,
    prim_funcs,
    run,
)
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledConfig, UnmodelledFamily
from tvmopt.kernels.emit import SCHEDULED_ATTR, NotApplicable, emit
from tvmopt.kernels.families import by_name
from tvmopt.kernels.first_choice import Scheduled, schedule_function
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.kernels.workload import Refusal

op, nn = relax.op, relax.op.nn


def _f32(*shape: int) -> tuple[tuple[int, ...], str]:
    return shape, "float32"


def _softmax(rows: int) -> tvm.IRModule:
    return lower(lambda x: nn.softmax(x, -1), [_f32(rows, 64)])


_CHANNELS_LAST = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
LARGE = {
    "register_tile": (
        lambda x, w: nn.conv2d(x, w, padding=1, **_CHANNELS_LAST),
        [_f32(1, 28, 28, 16), _f32(3, 3, 16, 32)],
    ),
    "window": (
        lambda x: nn.max_pool2d(x, 3, 2, 1, layout="NHWC"), [_f32(1, 56, 56, 64)],
    ),
    "row_reduction": (lambda x: nn.softmax(x, -1), [_f32(512, 64)]),
    "elementwise": (lambda a, b: nn.relu(op.add(a, b)), [_f32(64, 32, 32), _f32(64, 32, 32)]),
}  # fmt: skip


@pytest.mark.parametrize("rule", LARGE)
def test_large_functions_are_parallel_and_vectorised(rule: str) -> None:
    mod, rules = schedule_module(lower(*LARGE[rule]), ARCH)
    assert set(rules.values()) == {rule}
    assert {"parallel", "vectorized"} <= loop_kinds(mod)


def test_small_functions_are_not_parallel() -> None:
    mod, _ = schedule_module(lower(nn.relu, [_f32(32, 32)]), ARCH)
    assert loop_kinds(mod) == {"vectorized"}


def test_one_core_gives_no_parallel_loop() -> None:
    mod, _ = schedule_module(lower(*LARGE["elementwise"]), dataclasses.replace(ARCH, cores=1))
    assert loop_kinds(mod) == {"vectorized"}


def test_names_and_attributes_are_kept() -> None:
    before = _softmax(8)
    after, rules = schedule_module(before, ARCH)
    assert [v.name_hint for v in before.get_global_vars()] == [
        v.name_hint for v in after.get_global_vars()
    ]
    assert set(rules) == set(prim_funcs(before))
    for name, func in prim_funcs(after).items():
        old = prim_funcs(before)[name]
        assert {k: v for k, v in func.attrs.items() if k != SCHEDULED_ATTR} == dict(
            old.attrs.items()
        )
        assert func.attrs[SCHEDULED_ATTR]
    tvm.ir.assert_structural_equal(before["main"], after["main"], map_free_vars=True)


def test_scheduled_functions_are_passed_through() -> None:
    once, _ = schedule_module(_softmax(8), ARCH)
    twice, rules = schedule_module(once, ARCH)
    assert rules == {}
    tvm.ir.assert_structural_equal(once, twice)


def test_the_module_given_is_not_changed() -> None:
    mod = _softmax(8)
    text = mod.script()
    schedule_module(mod, ARCH)
    assert mod.script() == text


@pytest.mark.parametrize(
    ("operands", "reason"), [([_f32()], "no loop"), ([_f32(0, 4)], "zero-sized dimension")]
)
def test_reasons_of_what_is_left_alone(operands, reason) -> None:
    mod = lower(lambda x: op.add(x, x), operands)
    after, rules = schedule_module(mod, ARCH)
    assert all(r.startswith("unscheduled: ") and reason in r for r in rules.values())
    tvm.ir.assert_structural_equal(mod, after)


def test_symbolic_shapes_are_left_alone() -> None:
    n = tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(op.add(x, x))
        builder.emit_func_output(result)
    mod = relax.transform.LegalizeOps()(builder.get())
    _, rules = schedule_module(mod, ARCH)
    assert list(rules.values()) == ["unscheduled: symbolic shape"]


def test_sorting_is_left_alone() -> None:
    _, rules = check(lambda x: op.sort(x), [_f32(4, 9)])
    assert all(rule.startswith("unscheduled: ") for rule in rules.values()), rules


def test_far_rows_of_a_matmul_are_copied_into_panels() -> None:
    mod = lower(op.matmul, [_f32(64, 40), _f32(40, 512)])
    assert "x1_global" in apply_template(mod, "contraction").script()


def test_a_chain_that_doubles_is_not_inlined_into_one_expression() -> None:
    def chain(x):
        for _ in range(12):
            x = op.where(op.less(x, relax.const(0.5)), op.multiply(x, x), x)
        return x

    mod, _ = check(chain, [_f32(8, 16)])
    assert len(mod.script()) < 100_000


def test_a_long_chain_of_activations() -> None:
    def chain(x):
        for _ in range(6):
            x = op.nn.silu(x)
        return x

    check(chain, [_f32(8, 16)])


def test_a_pad_in_bfloat16() -> None:
    """The zeros are a constant, and TVM cannot store a bfloat16 vector constant."""
    mod = lower(lambda x: op.nn.pad(x, [0, 0, 1, 2, 3, 1]), [((2, 3, 3), "bfloat16")])
    scheduled, rules = schedule_module(mod, ARCH)
    assert list(rules.values()) == ["elementwise"]
    x = np.arange(18).reshape(2, 3, 3).astype(ml_dtypes.bfloat16)
    (got,) = run(scheduled, [x])
    np.testing.assert_array_equal(got, np.pad(x, [(0, 0), (1, 2), (3, 1)]))


class _Refuses(UnmodelledFamily):
    """A template that raises the exception of a TVM schedule primitive."""

    def __init__(self, name: str) -> None:
        self.name = name

    def emit(self, func, hint):
        sch = s_tir.Schedule(tvm.IRModule({"main": func}))
        sch.compute_inline(sch.get_sblock("root"))
        return sch


class _Unfit(UnmodelledFamily):
    """A template that never applies."""

    name = "unfit"

    def emit(self, func, hint):
        return Refusal("too odd")


def _softmax_func() -> tirx.PrimFunc:
    return next(iter(prim_funcs(_softmax(8)).values()))


def test_a_refusal_hands_on_to_the_next_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(by_name(), "register_tile", _Refuses("register_tile"))
    func = next(iter(prim_funcs(lower(*LARGE["register_tile"])).values()))
    result = schedule_function(func, ARCH)
    assert result.rule == "contraction"
    assert result.hint is not None
    assert result.hint.template == "contraction"


def test_a_refusal_of_all_templates_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(by_name()):
        monkeypatch.setitem(by_name(), name, _Refuses(name))
    func = _softmax_func()
    result = schedule_function(func, ARCH)
    assert isinstance(result, Scheduled)
    assert result.rule.startswith("unscheduled: ")
    assert "row_reduction refused: " in result.rule
    assert result.func.same_as(func)
    assert result.schedule is None
    assert result.hint is None


def test_the_hint_of_a_scheduled_function_gives_the_same_function_again() -> None:
    func = _softmax_func()
    result = schedule_function(func, ARCH)
    assert result.schedule is not None
    assert result.hint is not None
    again = emit(func, result.hint)
    tvm.ir.assert_structural_equal(again.mod, result.schedule.mod)


def test_not_applicable_says_which_template_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotApplicable, match=r"^elementwise: it has a reduction$"):
        emit(_softmax_func(), UnmodelledConfig("elementwise", ARCH))
    monkeypatch.setitem(by_name(), "refuses", _Refuses("refuses"))
    with pytest.raises(NotApplicable, match=r"^refuses refused: .+"):
        emit(_softmax_func(), UnmodelledConfig("refuses", ARCH))
    monkeypatch.setitem(by_name(), "unfit", _Unfit())
    with pytest.raises(NotApplicable, match=r"^unfit: too odd$"):
        emit(_softmax_func(), UnmodelledConfig("unfit", ARCH))


def test_templates_are_listed_under_their_names() -> None:
    assert all(name == family.name for name, family in by_name().items())


def test_the_package_needs_neither_mlflow_nor_the_slow_intrinsics() -> None:
    code = (
        "import sys, tvmopt.kernels.cpu, tvmopt.kernels\n"
        "bad = {'mlflow', 'optuna', 'tvm.s_tir.tensor_intrin'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
