"""The kernels of a module are the same wherever they are made: here, or in forks."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable

import pytest
import tvm
import tvm_ffi
from tvm import IRModule

from tests.kernels.ranking.functions import ARCH, convolution, matmul
from tvmopt import forked, host
from tvmopt.kernels import module_schedules
from tvmopt.kernels.module_schedules import schedule_module


@pytest.fixture
def network() -> IRModule:
    """Nine functions of eight structures."""
    columns = (16, 32, 48, 64, 80, 96, 112)
    functions = {f"matmul{n}": matmul(columns=n) for n in columns}
    return IRModule({**functions, "conv": convolution(), "again": matmul(columns=16)})


@pytest.fixture
def allow_forks(monkeypatch) -> Callable[[bool], None]:
    """Return a function that empties the cache of kernels, and lets two forks work or none."""
    monkeypatch.setattr(host, "usable_cores", lambda: 2)

    def allow(allowed: bool) -> None:
        monkeypatch.setattr(forked, "_is_allowed", allowed)
        monkeypatch.setattr(module_schedules, "_kernels", collections.OrderedDict())

    return allow


def test_forks_make_the_same_kernels(network, allow_forks, monkeypatch) -> None:
    made = {}
    for allowed in (False, True):
        allow_forks(allowed)
        made[allowed] = schedule_module(network, ARCH)
    assert made[True][1] == made[False][1]
    assert set(made[True][1].values()) == {"register_tile"}
    assert tvm_ffi.structural_equal(made[True][0], made[False][0])
    target = tvm.target.Target(ARCH.to_tvm())
    tvm.tirx.build(made[True][0]["again"].with_attr("global_symbol", "again"), target=target)
    # kept: nothing is scheduled again
    monkeypatch.setattr(module_schedules, "_first", lambda *given: pytest.fail("not kept"))
    assert tvm_ffi.structural_equal(schedule_module(network, ARCH)[0], made[True][0])


def test_an_error_of_a_fork_is_raised_here(network, allow_forks, monkeypatch) -> None:
    own = os.getpid()

    def fails(func, arch):
        raise ValueError(f"in {'this process' if os.getpid() == own else 'a fork'}")

    monkeypatch.setattr(module_schedules, "schedule_function", fails)
    allow_forks(True)
    with pytest.raises(ValueError, match="in this process"):
        schedule_module(network, ARCH)


def test_few_functions_need_no_fork(network, allow_forks, monkeypatch) -> None:
    monkeypatch.setattr(forked, "compute_all", lambda *given: pytest.fail("forked"))
    allow_forks(True)
    few = IRModule({name: network[name] for name in ("matmul16", "conv", "again")})
    _, rules = schedule_module(few, ARCH)
    assert set(rules) == {"matmul16", "conv", "again"}


def test_the_oldest_kernels_are_dropped(network, allow_forks, monkeypatch) -> None:
    monkeypatch.setattr(module_schedules, "KEPT", 3)
    allow_forks(False)
    schedule_module(network, ARCH)
    assert len(module_schedules._kernels) == 3
