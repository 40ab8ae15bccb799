"""Every template keeps the contract of :mod:`tests.kernels.cpu.contract` on random functions."""

from __future__ import annotations

import collections
import dataclasses

import hypothesis
import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import strategies as st
from tvm import ir, relax, s_tir, tirx

from tests.kernels.cpu.candidates import Case, Cpu, cases, check_numbers, cpus, two_threads
from tests.kernels.cpu.contract import assert_replays, keep_contract
from tests.kernels.cpu.drawn import Drawn, Operand
from tests.kernels.cpu.kinds import KINDS
from tvmopt.kernels.cpu.common.tile_config import TileConfig
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.register_tile.config import RegisterTileConfig
from tvmopt.kernels.emit import NotApplicable, emit
from tvmopt.kernels.families import by_name
from tvmopt.kernels.policies import DefaultPolicy

__all__ = ["two_threads"]

CPUS = cpus()
# Templates that must apply at least once among the functions of a kind.
SERVED = {
    "convolution": {"register_tile", "contraction", "contraction_in_place", "fallback"},
    "depthwise": {"register_tile", "window", "contraction", "fallback"},
    "winograd": {"winograd", "contraction", "fallback"},
    "matmul": {"register_tile", "contraction", "contraction_in_place", "fallback"},
    "transposed_convolution": {"register_tile", "elementwise", "fallback"},
    "pooling": {"window", "contraction", "contraction_in_place", "fallback"},
    "reduction": {"window", "row_reduction", "column_reduction", "contraction", "fallback"},
    "elementwise": {"elementwise", "fallback"},
    "movement": {"elementwise", "fallback"},
}
# Functions of a kind; the others have four. Fewer draw not every template of SERVED.
_EXAMPLES = {"winograd": 2, "depthwise": 6, "reduction": 6}


def _draw(kind: str, examples: int, executor) -> None:
    served: collections.Counter[str] = collections.Counter()

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(drawn=KINDS[kind], cpu=st.sampled_from(CPUS))
    def contract(drawn: Drawn, cpu: Cpu) -> None:
        served.update(executor.submit(keep_contract, drawn, cpu).result())

    contract()
    assert SERVED[kind] <= set(served), f"never applied: {SERVED[kind] - set(served)}"
    assert set(served) <= set(by_name())


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_template_keeps_the_contract(kind: str, two_threads) -> None:
    _draw(kind, _EXAMPLES.get(kind, 4), two_threads)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_template_keeps_the_contract_on_many_functions(kind: str, two_threads) -> None:
    _draw(kind, 150, two_threads)


@st.composite
def changed(draw, hint: TileConfig) -> TileConfig:
    """A hint that no policy would give: tiles that do not divide, loops in any order."""
    rank = len(hint.register_tile)
    within = draw(st.integers(0, min(2, rank - 1)))
    deepest = rank - within  # loops around the sums that a K block leaves unfinished
    tile, l2_block = hint.register_tile, getattr(hint, "l2_block", ())
    values = {
        "register_tile": tuple(draw(st.sampled_from([b, 1, 2, 3, 5, 8, 16, 2 * b])) for b in tile),
        "l2_block": tuple(draw(st.sampled_from([t, 1, 2, 3, 16, 2 * t])) for t in l2_block),
        "k_block": draw(st.sampled_from([0, 0, 1, 2, 3, 8, 16])),
        "loops_in_k_block": within,
        "loop_order": tuple(draw(st.permutations(hint.loop_order))),
        "parallel_loops": draw(st.integers(0, deepest)),
        "producer_depth": draw(st.integers(0, deepest)),
        "packing": draw(st.sampled_from(["none", "runtime", "prepacked"])),
    }
    known = {field.name for field in dataclasses.fields(hint)}
    return dataclasses.replace(hint, **{k: v for k, v in values.items() if k in known})


@pytest.mark.sample(1)
@hypothesis.settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(cpu=st.sampled_from(CPUS), data=st.data())
@pytest.mark.parametrize("kinds", [("convolution", "depthwise", "matmul"), ("winograd",)])
def test_any_hint_keeps_the_numbers_or_is_refused(kinds, cpu, data, two_threads) -> None:
    drawn = data.draw(st.one_of(*(KINDS[kind] for kind in kinds)))

    def check(case: Case, hints: list[CpuHint]) -> None:
        schedules = []
        for hint in hints:
            try:
                schedules.append(emit(case.func, hint))
            except NotApplicable:
                continue
            assert_replays(schedules[-1], case.func)
        check_numbers(case, [schedule.mod["main"] for schedule in schedules], cpu.target)

    for case in cases(drawn, cpu.target):
        ranked = [r.hint for r in DefaultPolicy(case.func, cpu.arch).ranked]
        tiled = [hint for hint in ranked if isinstance(hint, TileConfig)]
        hints = [data.draw(changed(hint)) for hint in tiled[:4]]
        two_threads.submit(check, case, hints).result()


def test_a_hint_with_loops_that_do_not_exist_is_refused() -> None:
    drawn = Drawn(
        "matmul", (Operand((7, 64)), Operand((64, 32))), relax.op.matmul, lambda a, b: a @ b
    )
    [case] = cases(drawn, CPUS[0].target)
    hint = RegisterTileConfig(
        "register_tile", CPUS[0].arch,
        register_tile=(1, 32), loop_order=(0, 1), k_block=32, loops_in_k_block=2,
        packing="runtime",
    )  # fmt: skip
    with pytest.raises(NotApplicable):
        emit(case.func, hint)


def test_a_cache_block_inside_a_k_block_is_refused() -> None:
    drawn = Drawn(
        "matmul", (Operand((48, 130)), Operand((130, 64))), relax.op.matmul, lambda a, b: a @ b
    )
    [case] = cases(drawn, CPUS[0].target)
    hint = RegisterTileConfig(
        "register_tile", CPUS[0].arch,
        register_tile=(12, 16), loop_order=(1, 0, 2), l2_block=(24, 0), k_block=13,
        loops_in_k_block=1, packing="runtime",
    )  # fmt: skip
    with pytest.raises(NotApplicable, match="cannot be inside the K-block loop"):
        emit(case.func, hint)
    emit(case.func, dataclasses.replace(hint, loop_order=(2, 1, 0)))


def _convolution(activation) -> Drawn:
    """A 3 x 3 convolution with a ragged last channel tile and symmetric attributes."""

    def build(x, w):
        y = relax.op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="HWIO")
        return activation(y)

    operands = Operand((1, 9, 9, 8)), Operand((3, 3, 8, 24), constant=True)
    return Drawn("conv2d", operands, build, None)


@pytest.fixture(scope="module")
def relu_case() -> Case:
    [case] = cases(_convolution(relax.op.nn.relu), CPUS[0].target)
    return case


def _packed(case: Case) -> s_tir.Schedule:
    """Schedule it by a hint with weight prepacking."""
    hints = [r.hint for r in DefaultPolicy(case.func, CPUS[0].arch).ranked]
    return emit(
        case.func, next(hint for hint in hints if getattr(hint, "packing", "") == "prepacked")
    )


def test_the_contract_is_kept_by_what_the_next_tests_break(relu_case: Case) -> None:
    schedule = _packed(relu_case)
    assert_replays(schedule, relu_case.func)
    check_numbers(relu_case, [schedule.mod["main"]], CPUS[0].target)


@pytest.mark.parametrize("split", [True, False])
def test_a_weight_that_is_packed_wrongly_is_caught(relu_case: Case, split: bool) -> None:
    func = _packed(relu_case).mod["main"]
    weight = func.params[1]

    def swap(load: ir.TensorLoad) -> ir.TensorLoad:
        if not load.source.same_as(weight):
            return load
        ky, kx, *rest = load.indices
        return load.source[kx, ky, *rest]

    body = tvm_ffi.structural_map(func.body, (ir.TensorLoad, swap), order="post")
    assert not tvm_ffi.structural_equal(body, func.body)
    wrong = tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_numbers(relu_case, [wrong], CPUS[0].target, split=split)


def test_a_forgotten_epilogue_is_caught(relu_case: Case) -> None:
    [plain] = cases(_convolution(relax.op.negative), CPUS[0].target)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_numbers(relu_case, [_packed(plain).mod["main"]], CPUS[0].target)


def test_numpy_is_compared_with(relu_case: Case) -> None:
    wrong = dataclasses.replace(relu_case, expected=np.zeros((1, 9, 9, 24)))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_numbers(wrong, [], CPUS[0].target)


def test_a_trace_of_something_else_is_caught(relu_case: Case) -> None:
    schedule = _packed(relu_case)
    # A step that is missing in the trace.
    other = schedule.copy()
    other.mod.update_func(
        other.mod.get_global_var("main"), other.mod["main"].with_attr("changed", True)
    )
    hidden = _Hidden(other.mod, schedule.trace)
    with pytest.raises(ValueError, match="StructuralEqual"):
        assert_replays(hidden, relu_case.func)


class _Hidden:
    """A schedule whose module and trace do not match."""

    def __init__(self, mod: tvm.IRModule, trace: s_tir.schedule.Trace) -> None:
        self.mod, self.trace = mod, trace


class _Forgets(UnmodelledFamily):
    """A template that accepts every function, and schedules another one."""

    name = "elementwise"

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        return s_tir.Schedule(tvm.IRModule({"main": func.with_attr("changed", True)}))


def test_a_template_that_breaks_the_contract_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn("relu", (Operand((3, 17)),), relax.op.nn.relu, lambda x: np.maximum(x, 0))
    assert keep_contract(drawn, CPUS[0])["elementwise"] > 1
    monkeypatch.setitem(by_name(), "elementwise", _Forgets())
    with pytest.raises(ValueError, match="StructuralEqual"):
        keep_contract(drawn, CPUS[0])
