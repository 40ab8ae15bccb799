"""Mutation test of kernel synchronisation: the emulator detects each wait that is removed."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tvm_ffi
from tvm import ir, tirx

from tests.emulator.cuda import ORDERS, run
from tests.kernels.cuda.hopper.sources import gemm_config
from tvmopt.device.gpus import GPUS
from tvmopt.errors import ArtifactError
from tvmopt.kernels.cuda.hopper.gemm import gemm
from tvmopt.kernels.cuda.hopper.problem import GemmProblem

H200 = GPUS["nvidia-h200"]
RNG = np.random.default_rng(0)
# Each block computes more than one tile, and its ring of stages goes round more than once.
PRODUCTS = {
    "persistent": (
        GemmProblem(1000, 520, 1000),
        gemm_config(consumer_warpgroups=1, tile_n=64, epilogue_buffers=1),
    ),
    "multicast, epilogue tile aliases the ring": (
        GemmProblem(520, 264, 1000),
        gemm_config(
            m_atoms=2, tile_n=136, cluster_m=2, cluster_n=2, persistent=False, epilogue_buffers=1
        ),
    ),
    "cluster split-K": (
        GemmProblem(300, 264, 1000),
        gemm_config(tile_n=128, split_k=2, persistent=False, epilogue_buffers=1),
    ),
}
# Calls that make a thread wait, that release a waiting thread, or that order an async copy.
_WAITING = (
    "cta_sync", "mbarrier_wait", "warpgroup_sync", "wait_group", "cluster_sync", "sync_cluster",
    "mbarrier_arrive", "fence_proxy", "commit_group",
)  # fmt: skip
# The product whose waits are removed in the default run.
_QUICK = "cluster split-K"
# The last step of a block that computes one tile lets nobody go on who still waits.
_NEEDLESS = {("cluster split-K", "tirx.ptx.mbarrier_arrive", 1)}


@functools.cache
def _kernel(name: str) -> tirx.PrimFunc:
    return gemm(*PRODUCTS[name])


def _called(statement: tirx.Evaluate) -> str:
    """Return the instruction or inline CUDA function that a statement calls."""
    call = statement.value
    if not isinstance(call, ir.Call):
        return ""
    if call.op.name != "tirx.cuda.func_call":
        return call.op.name
    return next(a.value for a in call.args if isinstance(getattr(a, "value", None), str))


def _waits(name: str) -> list[tuple[str, str, int]]:
    """Return the synchronisation statements of a kernel: kernel, instruction, index of its kind."""
    found: list[tuple[str, str, int]] = []

    def on_statement(statement: tirx.Evaluate) -> None:
        called = _called(statement)
        if any(each in called for each in _WAITING):
            found.append((name, called, sum(called == other for _, other, _ in found)))

    tvm_ffi.structural_walk(_kernel(name).body, (tirx.Evaluate, on_statement))
    return [each for each in found if each not in _NEEDLESS]


def _without(func: tirx.PrimFunc, called: str, which: int) -> tirx.PrimFunc:
    """Return ``func`` without statement number ``which`` of all calls of ``called``."""
    left = [which]

    def on_statement(statement: tirx.Evaluate) -> tirx.Evaluate:
        if _called(statement) == called:
            left[0] -= 1
            if left[0] == -1:
                return tirx.Evaluate(tirx.const(0, "int32"))
        return statement

    made = tvm_ffi.structural_map(func.body, (tirx.Evaluate, on_statement))
    assert left[0] < 0
    return func.with_body(made)


def _wrong(func: tirx.PrimFunc, name: str, order: str) -> str:
    """Return the error of the kernel under one completion order; empty when it is right."""
    problem, _ = PRODUCTS[name]
    a = RNG.standard_normal((problem.m, problem.k)).astype(np.float16)
    b = RNG.standard_normal((problem.n, problem.k)).astype(np.float16)
    empty = np.full((problem.m, problem.n), np.nan, np.float16)
    try:
        [got] = run(func, [a, b], [empty], H200, order=order, timeout_s=120)
    except ArtifactError as error:
        return str(error)
    close = np.isclose(got, a.astype("f4") @ b.astype("f4").T, rtol=2e-3, atol=2e-2)
    return "" if close.all() else "wrong results"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", PRODUCTS)
def test_an_unchanged_kernel_is_right_in_every_order(name: str) -> None:
    assert [_wrong(_kernel(name), name, order) for order in ORDERS] == ["", "", ""]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "called", "which"),
    [
        pytest.param(*each, marks=[] if name == _QUICK else pytest.mark.slow)
        for name in PRODUCTS
        for each in _waits(name)
    ],
)
def test_removing_any_wait_is_detected(name: str, called: str, which: int) -> None:
    less = _without(_kernel(name), called, which)
    assert any(_wrong(less, name, order) for order in reversed(ORDERS))


def test_needless_waits_can_be_removed() -> None:
    for name, called, which in _NEEDLESS:
        less = _without(_kernel(name), called, which)
        assert not any(_wrong(less, name, order) for order in ORDERS)


def test_a_standstill_says_what_is_waited_for() -> None:
    less = _without(_kernel("persistent"), "tirx.ptx.mbarrier_arrive_expect_tx", 0)
    said = _wrong(less, "persistent", "late")
    assert "no thread can go on: 129 wait for an mbarrier" in said
