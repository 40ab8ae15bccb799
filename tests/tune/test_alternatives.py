"""Implementations of every layer, and the plan with the least measured latency."""

from __future__ import annotations

import dataclasses

import hypothesis
import pytest
from hypothesis import strategies as st

from tvmopt.transform.lower import lower
from tvmopt.transform.plan import Implementation, free_layouts
from tvmopt.tune import alternatives as module
from tvmopt.tune import extract_tasks
from tvmopt.tune.alternatives import find_alternatives
from tvmopt.tune.database import workload_hash

from ..transform.plan_net import residual_net
from .models import ARCH, TARGET, matmul_net

DIRECT, W2, W4 = (Implementation("", name) for name in ("direct", "winograd2", "winograd4"))
BLOCKED = Implementation("NCHW16c")


@pytest.fixture(scope="module")
def mod():
    net = residual_net()
    free_layouts(net)
    return net


@pytest.fixture(scope="module")
def found(mod):
    """Return all alternatives, without pruning."""
    before, module._HOPELESS = module._HOPELESS, 1e9
    try:
        return find_alternatives(mod, TARGET, ARCH)
    finally:
        module._HOPELESS = before


def of(found, layer: int, implementation: Implementation) -> str:
    """Hash of the function of one implementation."""
    return next(
        w.workload
        for w in found.implementations
        if (w.layer, w.implementation) == (layer, implementation)
    )


def test_all_ways_are_tasks_beside_the_networks_own(mod, found) -> None:
    implementations = {(w.layer, w.implementation) for w in found.implementations}
    assert implementations == {
        *((0, implementation) for implementation in (DIRECT, W2, W4, BLOCKED)),
        *((layer, implementation) for layer in (1, 2, 3) for implementation in (DIRECT, BLOCKED)),
    }
    tasks = {workload_hash(task.mod) for task in found.tasks}
    assert {w.workload for w in found.implementations} <= tasks
    assert set(found.changes.values()) <= tasks
    assert {workload_hash(t.mod) for t in extract_tasks(lower(mod, TARGET), TARGET)} <= tasks
    assert len({task.name for task in found.tasks}) == len(found.tasks)


def test_task_groups_are_the_ways_of_each_layer(found) -> None:
    hash_of = {task.name: workload_hash(task.mod) for task in found.tasks}
    groups = {frozenset(hash_of[name] for name in group) for group in found.task_groups}
    assert groups == {
        frozenset(w.workload for w in found.implementations if w.layer == layer)
        for layer in range(4)
    }


def test_without_latencies_every_layer_stays_as_converted(found) -> None:
    [only] = found.contenders({})
    assert only.plan == {}


def test_equal_plans_are_listed_once(found) -> None:
    """Of layouts that were not measured, no plan can be made: it would be the converted one."""
    latency_us = {of(found, layer, DIRECT): 1.0 for layer in range(4)}
    plans = [c.plan for c in found.contenders(latency_us)]
    assert plans == [dict.fromkeys(range(4), DIRECT)]


def test_hopeless_ways_are_listed_and_not_measured(mod, found) -> None:
    cheapest = min(w.cycles for w in found.implementations if w.layer == 0)
    dearest = max((w for w in found.implementations if w.layer == 0), key=lambda w: w.cycles)
    assert dearest.cycles > cheapest
    before, module._HOPELESS = module._HOPELESS, dearest.cycles / cheapest * 0.999
    try:
        some = find_alternatives(mod, TARGET, ARCH)
    finally:
        module._HOPELESS = before
    assert some is not None
    [listed] = [w for w in some.implementations if w.workload == dearest.workload]
    assert listed.hopeless
    assert listed.workload not in {workload_hash(task.mod) for task in some.tasks}


def test_a_network_without_convolutions_has_none() -> None:
    assert find_alternatives(matmul_net(), TARGET, ARCH) is None


def test_a_faster_layout_is_taken_when_the_changes_cost_less(found) -> None:
    latency = dict.fromkeys((workload_hash(task.mod) for task in found.tasks), 10.0)
    latency |= dict.fromkeys(found.changes.values(), 1.0)
    latency[of(found, 1, BLOCKED)] = latency[of(found, 2, BLOCKED)] = 5.0
    latency[of(found, 0, BLOCKED)] = latency[of(found, 3, BLOCKED)] = 20.0
    best = found.contenders(latency)[0]
    assert best.name == "combined"
    assert best.exact
    assert best.plan[1] == best.plan[2] == BLOCKED
    assert best.plan[3] == DIRECT
    latency |= dict.fromkeys(found.changes.values(), 30.0)
    best = found.contenders(latency)[0]
    assert best.name == "uniform as converted"
    assert best.exact


def test_algorithms_are_compared_by_what_was_measured(found) -> None:
    latency = dict.fromkeys((workload_hash(task.mod) for task in found.tasks), 10.0)
    for implementation in (DIRECT, W2, W4):
        best = found.contenders(latency | {of(found, 0, implementation): 5.0})[0]
        assert best.plan[0] == implementation
        unmeasured = {k: v for k, v in latency.items() if k != of(found, 0, implementation)}
        assert found.contenders(unmeasured)[0].plan[0] != implementation


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
@hypothesis.given(st.data())
def test_no_single_layout_is_predicted_to_take_less(found, data) -> None:
    hashes = sorted({workload_hash(task.mod) for task in found.tasks})
    costs = data.draw(st.lists(st.floats(1, 50), min_size=len(hashes), max_size=len(hashes)))
    contenders = found.contenders(dict(zip(hashes, costs, strict=True)))
    assert {"uniform as converted", "uniform NCHW16c"} <= {c.name for c in contenders}
    assert contenders[0].exact
    assert contenders == sorted(contenders, key=lambda c: c.predicted_us)


def test_what_the_model_would_choose_is_a_contender(found) -> None:
    """The measurements favour another plan; timing the network decides between both."""
    model = found.modelled[0]
    other = next(implementation for implementation in (DIRECT, W2, W4) if implementation != model)
    latency = {w.workload: 10.0 for w in found.implementations}
    latency |= dict.fromkeys(found.changes.values(), 1000.0)
    latency[of(found, 0, model)], latency[of(found, 0, other)] = 12.0, 5.0
    by_name = {c.name: c for c in found.contenders(latency)}
    assert by_name[module.MODELLED].plan == {layer: found.modelled[layer] for layer in range(4)}
    assert by_name[module.MODELLED].predicted_us == 42.0
    assert by_name["uniform as converted"].predicted_us == 35.0
    latency[of(found, 0, model)] = 4.0  # then both plans are equal, and listed once
    assert module.MODELLED not in {c.name for c in found.contenders(latency)}


def test_a_contender_says_the_same_twice(found) -> None:
    latency = dict.fromkeys((workload_hash(task.mod) for task in found.tasks), 10.0)
    first, second = found.contenders(latency), found.contenders(latency)
    assert [dataclasses.asdict(c) for c in first] == [dataclasses.asdict(c) for c in second]
