"""The module level: what is passed through, what is reported, and that schedules take hold."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, tirx

from tvmopt.schedule import (
    DEFAULT_RULES,
    Scheduled,
    ScheduleRule,
    schedule_function,
    schedule_module,
)
from tvmopt.schedule.apply import SCHEDULED_ATTR

from .harness import ARCH, check, loop_kinds, lower, run

op, nn = relax.op, relax.op.nn


def _f32(*shape: int) -> tuple[tuple[int, ...], str]:
    return shape, "float32"


def _prim_funcs(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    return {
        var.name_hint: func
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def _softmax(rows: int) -> tvm.IRModule:
    return lower(lambda x: nn.softmax(x, -1), [_f32(rows, 64)])


LARGE = {
    "contraction": (lambda x, w: nn.conv2d(x, w, padding=1),
                    [_f32(1, 16, 28, 28), _f32(32, 16, 3, 3)]),
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
    assert set(rules) == set(_prim_funcs(before))
    for name, func in _prim_funcs(after).items():
        old = _prim_funcs(before)[name]
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
    mod, rules = schedule_module(lower(op.matmul, [_f32(64, 40), _f32(40, 512)]), ARCH)
    assert list(rules.values()) == ["contraction"]
    assert "x1_global" in mod.script()


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
    """Its zeros are a constant, of which TVM stores no vector in this type."""
    mod = lower(lambda x: op.nn.pad(x, [0, 0, 1, 2, 3, 1]), [((2, 3, 3), "bfloat16")])
    scheduled, rules = schedule_module(mod, ARCH)
    assert list(rules.values()) == ["elementwise"]
    x = np.arange(18).reshape(2, 3, 3).astype(ml_dtypes.bfloat16)
    (got,) = run(scheduled, [x])
    np.testing.assert_array_equal(got, np.pad(x, [(0, 0), (1, 2), (3, 1)]))


class _Refuses(ScheduleRule):
    """Raises what TVM's primitives raise."""

    name = "refuses"

    def apply(self, func, arch):
        sch = s_tir.Schedule(tvm.IRModule({"main": func}))
        sch.compute_inline(sch.get_sblock("root"))
        return sch


def test_a_refusal_hands_on_to_the_next_rule() -> None:
    func = next(iter(_prim_funcs(_softmax(8)).values()))
    assert schedule_function(func, ARCH, [_Refuses(), *DEFAULT_RULES]).rule == "row_reduction"


def test_a_refusal_of_all_rules_is_reported() -> None:
    func = next(iter(_prim_funcs(_softmax(8)).values()))
    result = schedule_function(func, ARCH, [_Refuses()])
    assert isinstance(result, Scheduled)
    assert result.rule.startswith("unscheduled: refuses refused: ")
    assert result.func.same_as(func)


def test_no_rules_means_unscheduled() -> None:
    func = next(iter(_prim_funcs(_softmax(8)).values()))
    assert schedule_function(func, ARCH, []).rule == "unscheduled: no rule fits"


def test_rule_names_are_distinct() -> None:
    names = [rule.name for rule in DEFAULT_RULES]
    assert len(names) == len(set(names))


def test_the_package_needs_neither_mlflow_nor_the_slow_intrinsics() -> None:
    code = (
        "import sys, tvmopt.schedule\n"
        "bad = {'mlflow', 'optuna', 'tvm.s_tir.tensor_intrin'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
