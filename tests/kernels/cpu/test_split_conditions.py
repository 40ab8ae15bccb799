"""Loop partition: find where conditions change, and split concatenations there."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st
from tvm import IRModule, relax, s_tir

from tests.kernels.cpu.harness import ARCH, NARROW, check, lower, prim_funcs
from tests.kernels.cpu.test_templates import assert_replays
from tvmopt.kernels.analysis import block_facts, leaf_blocks
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledConfig
from tvmopt.kernels.cpu.passes.split_conditions import condition_changes
from tvmopt.kernels.emit import emit

op, nn = relax.op, relax.op.nn


def _concat(axis: int = -1, epilogue=lambda y: y):
    return lambda *parts: epilogue(op.concat(list(parts), axis))


def _operands(rows: int, widths: list[int], dtype: str = "float32"):
    return [((1, rows, width), dtype) for width in widths]


def _func(build, operands):
    (func,) = prim_funcs(lower(build, operands)).values()
    return func


def _changes(build, operands) -> list[int]:
    sch = s_tir.Schedule(IRModule({"main": _func(build, operands)}))
    (block,) = leaf_blocks(sch)
    return condition_changes(sch.get(block), block_facts(sch, block).axes[-1])


@pytest.mark.parametrize("widths", [[24, 13], [64, 96], [1, 1], [4, 1, 80], [13] * 8])
def test_a_concatenation_changes_where_its_operands_meet(widths: list[int]) -> None:
    ends = [sum(widths[:n]) for n in range(1, len(widths))]
    assert _changes(_concat(), _operands(3, widths)) == ends


def test_a_concatenation_along_another_axis_does_not_change() -> None:
    operands = [((1, 3, 8), "float32"), ((1, 5, 8), "float32")]
    assert _changes(_concat(1), operands) == []


def test_padding_changes_at_both_ends() -> None:
    build = lambda x: nn.pad(x, [0, 0, 0, 0, 3, 2])  # noqa: E731
    assert _changes(build, _operands(4, [20])) == [3, 23]


def test_parts_are_vectors() -> None:
    func = _func(_concat(), _operands(3136, [24, 13]))
    text = emit(func, UnmodelledConfig("elementwise", ARCH)).mod["main"].script()
    assert "T.vectorized(T.int64(24))" in text
    assert "T.vectorized(T.int64(24), T.int64(37))" in text
    assert "T.parallel(" in text


def test_common_divisors_make_equal_vectors() -> None:
    func = _func(_concat(), _operands(784, [64, 96]))
    text = emit(func, UnmodelledConfig("elementwise", ARCH)).mod["main"].script()
    assert text.count("T.vectorized(T.int64(32))") == 2


def test_very_many_parts_stay_a_loop() -> None:
    func = _func(_concat(), _operands(4, [1009, 1013]))
    assert (
        "_partition" not in emit(func, UnmodelledConfig("elementwise", ARCH)).mod["main"].script()
    )


@hypothesis.settings(max_examples=8, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    rows=st.sampled_from([1, 3, 600]),
    widths=st.lists(st.integers(1, 70), min_size=2, max_size=8),
    epilogue=st.sampled_from([lambda y: y, nn.relu, lambda y: op.multiply(y, y)]),
    dtype=st.sampled_from(["float32", "float32", "float16", "bfloat16", "int8", "bool"]),
    arch=st.sampled_from([ARCH, NARROW]),
)
def test_numbers_stay_for_any_widths(rows, widths, epilogue, dtype, arch) -> None:
    if dtype in ("bfloat16", "bool", "int8"):
        epilogue = lambda y: y  # noqa: E731
    if dtype == "bfloat16":  # NumPy has none
        build = lambda *p: op.astype(_concat()(*(op.astype(v, dtype) for v in p)), "float32")  # noqa: E731
        dtype = "float32"
    else:
        build = _concat(-1, epilogue)
    operands = _operands(rows, widths, dtype)
    check(build, operands, arch, template="elementwise")
    for func in prim_funcs(lower(build, operands)).values():
        assert_replays(emit(func, UnmodelledConfig("elementwise", arch)), func)
