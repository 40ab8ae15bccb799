"""Schedule transfer from an operator to its fused functions: results, fusion, refusals."""

from __future__ import annotations

import math

import hypothesis
import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import strategies as st
from tvm import relax, s_tir, tirx
from tvm.tirx import IntImm

from tests.kernels.cpu.candidates import Case, cases, check_numbers
from tests.kernels.cpu.drawn import Drawn
from tests.kernels.cpu.kinds import KINDS, NARROW
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledConfig
from tvmopt.kernels.cpu.winograd.config import WinogradConfig
from tvmopt.kernels.emit import NotApplicable
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.tune.operator import anchor_block, operator_blocks, operator_function
from tvmopt.tune.transfer import transfer_hints, transfer_trace

from .fused import ALONE, FUSED, fused_function, matmul, residual_first, sampled_traces
from .models import ARCH, SPEC, TARGET

op, nn = relax.op, relax.op.nn
QUICK = SPEC.to_tvm(opt_level=1)  # same schedules, half the compile time
TRACES = 3


def cut(func: tirx.PrimFunc) -> tirx.PrimFunc:
    operator = operator_function(func)
    assert operator is not None
    return operator


def anchored(drawn: Drawn) -> list[Case]:
    """Return the functions of ``drawn`` with an anchor."""
    return [case for case in cases(drawn, QUICK) if anchor_block(case.func)]


def nests(func: tirx.PrimFunc) -> list[list[str]]:
    """Return the names of blocks in each loop nest, in program order."""
    body = func.body.block.body
    found = []
    for nest in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        found.append([])
        tvm_ffi.structural_walk(nest, (s_tir.SBlock, lambda b: found[-1].append(b.name_hint)))
    return found


def writers(func: tirx.PrimFunc) -> dict[str, int]:
    """Return the trip count of each block that writes the result, by name; 0 if predicated."""
    found: dict[str, int] = {}

    def visit(stmt: tirx.Stmt, runs: int) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                visit(part, runs)
        elif isinstance(stmt, tirx.For):
            visit(stmt.body, runs * int(stmt.extent))
        elif isinstance(stmt, s_tir.SBlockRealize):
            writes = any(region.source.same_as(func.params[-1]) for region in stmt.block.writes)
            if writes and stmt.block.name_hint != "root":
                found[stmt.block.name_hint] = runs if isinstance(stmt.predicate, IntImm) else 0
            visit(stmt.block.body, runs)

    visit(func.body, 1)
    return found


def assert_in_one_nest(func: tirx.PrimFunc, anchor: str) -> None:
    """Assert that the last loop nest holds the reduction, and writes each output element once."""
    last = nests(func)[-1]
    assert {anchor, f"{anchor}_update"} & set(last), nests(func)
    finished = writers(func)
    assert finished and set(finished) <= set(last)
    if not {f"{anchor}_update", f"{anchor}_init"} & set(finished):  # not in the accumulator
        assert set(finished.values()) <= {0, math.prod(int(e) for e in func.params[-1].shape)}


# ---- traces ----


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", FUSED)
def test_every_sampled_trace_is_transferred(name: str) -> None:
    """Each equals NumPy, and its epilogue is inside the tile loops."""
    [case] = anchored(FUSED[name])
    operator = cut(case.func)
    traces = sampled_traces(operator, TRACES)
    assert len(traces) == TRACES
    scheduled = [transfer_trace(case.func, operator, trace, TARGET) for trace in traces]
    for func in scheduled:
        assert func.attrs["tirx.is_scheduled"]
        assert func.attrs["layout_free_buffers"] == case.func.attrs["layout_free_buffers"]
        assert_in_one_nest(func, anchor_block(operator))
    check_numbers(case, scheduled, QUICK, split=False)


# Without transposed convolutions: for one input channel, TVM rewrites the weight layout wrongly,
# which the tuner detects in the results of the operator. Without int8 convolutions: LLVM takes
# minutes for some that are unrolled.
DRAWN = [
    "convolution", "depthwise", "matmul", "pooling", "reduction", "byte_matmul",
    "bfloat16_convolution", "bfloat16_matmul",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWN)
def test_traces_of_many_functions_are_transferred(kind: str) -> None:
    transferred = 0

    @hypothesis.settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(drawn=(KINDS | NARROW)[kind], seed=st.integers(1, 999))
    def check(drawn: Drawn, seed: int) -> None:
        nonlocal transferred
        for case in anchored(drawn):
            operator = cut(case.func)
            traces = sampled_traces(operator, 2, seed)
            scheduled = [transfer_trace(case.func, operator, t, TARGET) for t in traces]
            check_numbers(case, scheduled, QUICK)
            transferred += len(scheduled)

    check()
    assert transferred >= 60


def test_what_a_trace_cuts_up_in_parts_that_are_summed_is_finished_once() -> None:
    """RFactor yields two reduction blocks; the epilogue belongs to the second."""
    [case] = anchored(FUSED["matmul of one row"])
    operator = cut(case.func)
    traces = [
        trace
        for trace in sampled_traces(operator, 12)
        if any(inst.kind.name == "RFactor" for inst in trace.insts)
    ]
    assert traces
    scheduled = [transfer_trace(case.func, operator, trace, TARGET) for trace in traces[:3]]
    for func in scheduled:
        names = [name for nest in nests(func) for name in nest]
        assert {"matmul_rf", "matmul_rf_update"} & set(names)
        assert_in_one_nest(func, "matmul")
    check_numbers(case, scheduled, QUICK)


def test_sampled_traces_of_a_padded_convolution_differ_in_where_they_pad() -> None:
    """The list of blocks depends on the decisions of the trace."""
    [case] = anchored(FUSED["convolution in NCHW"])
    operator = cut(case.func)
    scheduled = [
        transfer_trace(case.func, operator, trace, TARGET) for trace in sampled_traces(operator, 8)
    ]
    padded = [sum("pad_temp" in nest for nest in nests(func)) for func in scheduled]
    apart = ["pad_temp" not in nests(func)[-1] for func in scheduled]
    assert 0 in padded, "none computes the padding where it is read"
    assert any(apart) and not all(apart)


def renamed(func: tirx.PrimFunc, names: dict[str, str]) -> tirx.PrimFunc:
    text = func.script()
    for old, new in names.items():
        assert f'"{old}"' in text
        text = text.replace(f'T.sblock("{old}")', f'T.sblock("{new}")')
    again = tvm.script.from_source(text)
    tvm.ir.assert_structural_equal(again, func)
    return again


def test_blocks_of_the_operator_may_have_other_names() -> None:
    """Structural equality ignores names, so records of one function serve the other.

    Here the names are even swapped.
    """
    [case] = anchored(FUSED["convolution in NCHW"])
    operator = renamed(cut(case.func), {"pad_temp": "T_add", "conv2d_nchw": "pad_temp"})
    assert operator_blocks(operator) == ["T_add", "pad_temp"]
    traces = sampled_traces(operator, 2)
    scheduled = [transfer_trace(case.func, operator, trace, TARGET) for trace in traces]
    for func in scheduled:
        assert_in_one_nest(func, "pad_temp")
    check_numbers(case, scheduled, QUICK, split=False)


def test_what_was_found_of_a_product_alone_serves_a_fused_one() -> None:
    [alone] = anchored(ALONE)
    [whole] = anchored(residual_first())
    tvm.ir.assert_structural_equal(cut(alone.func), cut(whole.func))
    traces = sampled_traces(cut(alone.func), TRACES)
    scheduled = [transfer_trace(whole.func, cut(alone.func), trace, TARGET) for trace in traces]
    for func in scheduled:
        assert_in_one_nest(func, "conv2d_nhwc")
    check_numbers(whole, scheduled, QUICK)  # also with weight prepacking


def test_what_is_no_product_takes_its_own_trace() -> None:
    func = fused_function(Drawn("softmax", FUSED["matmul"].operands[:1], nn.softmax, None))
    traces = sampled_traces(cut(func), 2)
    assert traces
    scheduled = [transfer_trace(func, cut(func), trace, TARGET) for trace in traces]
    x = np.random.default_rng(0).standard_normal((24, 48), np.float32)
    exp = np.exp(x.astype("float64"))
    check_numbers(Case(func, [x], exp / exp.sum(1, keepdims=True)), scheduled, QUICK)


def test_a_damaged_trace_is_refused() -> None:
    """A trace without one of its instructions never raises another error."""
    func = fused_function(FUSED["matmul"])
    [trace] = sampled_traces(cut(func), 1)
    refused = 0
    for drop in range(0, len(trace.insts), 2):
        insts = [inst for n, inst in enumerate(trace.insts) if n != drop]
        try:
            damaged = s_tir.schedule.Trace(insts, trace.decisions)
            transfer_trace(func, cut(func), damaged, TARGET)
        except NotApplicable as error:
            assert str(error).startswith(("the trace does not fit: ", "the trace leaves no loop"))
            assert not str(error).endswith(": ")
            refused += 1
    assert refused > len(trace.insts) // 4


def test_a_trace_of_another_operator_is_refused() -> None:
    func = fused_function(FUSED["matmul"])
    other = cut(fused_function(FUSED["convolution in NCHW"]))
    [trace] = sampled_traces(other, 1)
    for named_like in (other, cut(func)):
        with pytest.raises(NotApplicable, match=r"the trace does not fit: .+"):
            transfer_trace(func, named_like, trace, TARGET)
    alone = cut(func)
    with pytest.raises(NotApplicable, match=r"the trace does not fit: .+"):
        transfer_trace(alone, alone, trace, TARGET)


def test_a_function_without_an_operator_is_refused() -> None:
    func = fused_function(Drawn("relu", FUSED["matmul"].operands[:1], nn.relu, None))
    operator = cut(fused_function(FUSED["matmul"]))
    [trace] = sampled_traces(operator, 1)
    with pytest.raises(NotApplicable, match=r"the trace does not fit: .+"):
        transfer_trace(func, operator, trace, TARGET)


def test_an_epilogue_that_reads_what_is_computed_apart_is_refused() -> None:
    """An expensive vector that every row reads is computed once, before the matmul."""
    drawn = matmul((16, 32), (32, 24), "bias")

    def build(x, w, bias):
        builder = relax.BlockBuilder.current()
        costly = builder.emit(op.exp(bias))
        return op.add(builder.emit(op.matmul(x, w)), costly)

    func = fused_function(Drawn("costly bias", drawn.operands, build, None))
    assert operator_blocks(func) == ["matmul"]
    [trace] = sampled_traces(cut(func), 1)
    with pytest.raises(NotApplicable, match="its epilogue reads 1 stages that no tile can hold"):
        transfer_trace(func, cut(func), trace, TARGET)


# ---- hints ----


@pytest.mark.parametrize("name", ["convolution with a residual", "byte matmul"])
def test_hints_of_the_operator_are_applied_to_the_function(name: str) -> None:
    [case] = anchored(FUSED[name])
    hints = [ranked.hint for ranked in DefaultPolicy(cut(case.func), ARCH).ranked][:3]
    scheduled = [transfer_hints(case.func, [hint]) for hint in hints]
    assert scheduled
    assert all(func.attrs["tirx.is_scheduled"] for func in scheduled)
    check_numbers(case, scheduled, QUICK)


def test_the_first_hint_that_fits_is_taken() -> None:
    func = fused_function(FUSED["matmul"])
    best, second = (ranked.hint for ranked in DefaultPolicy(func, ARCH).ranked[:2])
    unfit = UnmodelledConfig("elementwise", ARCH)
    expected = transfer_hints(func, [best])
    tvm.ir.assert_structural_equal(transfer_hints(func, [unfit, best, second]), expected)
    assert not tvm_ffi.structural_equal(transfer_hints(func, [second, best]), expected)


def test_why_no_hint_fits_is_said() -> None:
    func = fused_function(FUSED["matmul"])
    unfit = [UnmodelledConfig("elementwise", ARCH), WinogradConfig("winograd", ARCH)]
    with pytest.raises(NotApplicable, match=r"^elementwise: it has a reduction$"):
        transfer_hints(func, unfit)
    with pytest.raises(NotApplicable, match=r"^no schedule of its operator was measured$"):
        transfer_hints(func, [])
