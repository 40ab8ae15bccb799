"""Batched GEMM of two activations: its numbers, its rank, and what it leaves to others."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tvm import relax, tirx

from tests.kernels.cpu.candidates import cases, check_numbers, cpus, two_threads
from tests.kernels.cpu.contract import assert_replays
from tests.kernels.cpu.drawn import Drawn, Operand
from tests.kernels.ranking.functions import ARCH, function, matmul
from tvmopt.kernels.cpu.batched_gemm.family import BatchedGemm
from tvmopt.kernels.emit import emit
from tvmopt.kernels.policies import DefaultPolicy, Policy
from tvmopt.kernels.workload import Refusal, Workload

__all__ = ["two_threads"]

CPUS = cpus()


def _batched(*shapes: tuple[int, ...]) -> Drawn:
    left, right = shapes
    operands = Operand(left), Operand(right)
    return Drawn("matmul", operands, relax.op.matmul, lambda a, b: a @ b)


def _activations(left: tuple[int, ...], right: tuple[int, ...]) -> tirx.PrimFunc:
    return function(relax.op.matmul, left, right).without_attr("layout_free_buffers")


@pytest.mark.sample(1)
@pytest.mark.parametrize("cpu", CPUS, ids=lambda cpu: cpu.name)
def test_every_configuration_keeps_the_numbers(cpu, two_threads) -> None:
    [case] = cases(_batched((3, 29, 40), (3, 40, 64)), cpu.target)
    hints = [r.hint for r in Policy(case.func, cpu.arch, (BatchedGemm(),)).ranked]
    assert any(29 % hint.register_tile[1] for hint in hints)
    schedules = [emit(case.func, hint) for hint in hints]
    for schedule in schedules[:: len(schedules) // 4]:
        assert_replays(schedule, case.func)
    chosen = [schedule.mod["main"] for schedule in schedules]
    two_threads.submit(check_numbers, case, chosen, cpu.target).result()


def test_bytes_without_a_dot_product_instruction(two_threads) -> None:
    cpu = dataclasses.replace(CPUS[2], arch=dataclasses.replace(CPUS[2].arch, mcpu="x86-64"))
    operands = Operand((3, 29, 40), dtype="uint8"), Operand((3, 40, 64), dtype="int8")
    drawn = Drawn(
        "matmul", operands, lambda a, b: relax.op.matmul(a, b, out_dtype="int32"), np.matmul
    )
    [case] = cases(drawn, cpu.target)
    hints = [r.hint for r in Policy(case.func, cpu.arch, (BatchedGemm(),)).ranked]
    chosen = [emit(case.func, hint).mod["main"] for hint in hints[:3]]
    assert chosen
    two_threads.submit(check_numbers, case, chosen, cpu.target).result()


def test_nothing_is_packed() -> None:
    func = _activations((12, 128, 32), (12, 32, 128))
    [found] = Policy(func, ARCH, (BatchedGemm(),)).ranking.found
    for ranked in found.ranked[:3]:
        root = emit(func, ranked.hint).mod["main"].body.block
        assert [buffer.scope() for buffer in root.alloc_buffers] == ["local"]


def test_it_is_ranked_before_packing_all_of_b() -> None:
    func = _activations((12, 128, 32), (12, 32, 128))
    assert DefaultPolicy(func, ARCH).emit_config(1)[0].template == "batched_gemm"


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (matmul(), "constant"),
        (_activations((64, 32), (32, 64)), "no batch axis"),
    ],
    ids=["weight", "one GEMM"],
)
def test_what_is_left_to_other_families(func, reason) -> None:
    refusal = BatchedGemm().match(Workload(func), ARCH)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
