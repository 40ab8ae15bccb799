"""Results for functions of equal structure, kept for the later stages of a command."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, te

from tvmopt import command_cache, forked
from tvmopt.device.target import resolve_target
from tvmopt.kernels import graph_cost, module_schedules
from tvmopt.kernels.graph_cost import modelled_cycles
from tvmopt.kernels.kept_results import KeptResults
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.kernels.structure import Structure
from tvmopt.transform.lower import lower

_TARGET = resolve_target("host", 1)


def _doubled(name: str, extent: int = 8) -> Structure[None]:
    x = te.placeholder((extent,), "float32", name)
    return Structure(te.create_prim_func([x, te.compute((extent,), lambda i: x[i] * 2)]), None)


@pytest.fixture
def cache(tmp_path):
    with command_cache.shared_in(tmp_path):
        yield tmp_path


@pytest.mark.usefixtures("cache")
def test_a_function_of_equal_structure_has_the_result() -> None:
    KeptResults("cycles", "cpu").keep(_doubled("x"), 7.5)
    assert KeptResults("cycles", "cpu").find(_doubled("y")) == 7.5
    assert KeptResults("cycles", "cpu").find(_doubled("x", 9)) is None
    assert KeptResults("cycles", "another cpu").find(_doubled("x")) is None
    assert KeptResults("schedules", "cpu").find(_doubled("x")) is None


@pytest.mark.usefixtures("cache")
def test_the_result_of_another_function_with_the_same_hash_is_not_taken(monkeypatch) -> None:
    monkeypatch.setattr(Structure, "name", "0" * 16)
    kept = KeptResults("cycles", "cpu")
    kept.keep(_doubled("x"), 7.5)
    assert kept.find(_doubled("x", 9)) is None
    kept.keep(_doubled("x", 9), 8.5)
    assert (kept.find(_doubled("x")), kept.find(_doubled("x", 9))) == (None, 8.5)


def test_nothing_is_kept_outside_of_a_command(monkeypatch) -> None:
    monkeypatch.delenv("TVMOPT_COMMAND_CACHE", raising=False)
    kept = KeptResults("cycles", "cpu")
    kept.keep(_doubled("x"), 7.5)
    assert kept.find(_doubled("x")) is None


def _network() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            value = builder.emit(relax.op.exp(x))
            for width in range(9, 20):
                shape = (value.ty.shape[1], width)
                value = builder.emit(relax.op.matmul(value, relax.op.ones(shape, "float32")))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return lower(builder.get(), _TARGET.to_tvm())


def _fails(*_):
    raise AssertionError("computed again")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("forks", [False, True])
def test_a_later_stage_takes_over_schedules_and_predicted_cycles(monkeypatch, forks) -> None:
    network, arch = _network(), _TARGET.arch()
    monkeypatch.setattr(forked, "_is_allowed", forks)
    monkeypatch.setattr(module_schedules, "_kernels", module_schedules._kernels.copy())
    module_schedules._kernels.clear()
    scheduled, rules = schedule_module(network, arch)
    cycles = modelled_cycles(network, arch)
    module_schedules._kernels.clear()  # as in another process
    monkeypatch.setattr(module_schedules, "schedule_function", _fails)
    monkeypatch.setattr(graph_cost, "policy_of", _fails)
    again, same_rules = schedule_module(network, arch)
    tvm.ir.assert_structural_equal(again, scheduled)
    assert same_rules == rules
    assert modelled_cycles(network, arch) == cycles
