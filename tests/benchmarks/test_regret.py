"""Tests of the regret benchmark: samples, batches, final measurements, means."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import regret
from benchmarks.operator_table import same_convolution
from benchmarks.regret import RegretRow, Settings, reasons, remeasure, sample, sweep
from benchmarks.single_calls import SingleCall
from benchmarks.tuning_tasks import TuningTask, operator_task
from tvmopt.device.target import resolve_target
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.measure.measurer import Measured

TARGET = resolve_target("host", 1)


# A task with only the fields that a fake measurer reads.
CALL = SingleCall("x", None, None)
TASK = TuningTask("x", "conv", ours=CALL, plain=CALL)


class FakeMeasurer:
    """Look up the latency of a hint in a table, without a build."""

    def __init__(self, latency_us):
        self.latency_us = latency_us
        self.batches = []

    def measure(self, groups, stop=lambda: False):
        self.batches += [(list(g.hints), [m.latency_us for m in g.again]) for g in groups]
        timed = [[*(m.hint for m in group.again), *group.hints] for group in groups]
        return [[self._one(hint) for hint in hints] for hints in timed]

    def _one(self, hint):
        us = self.latency_us(hint)
        return Measured(hint, None, us) if isinstance(us, str) else Measured(hint, us, None)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 900), st.integers(1, 600), st.integers(0, 3))
def test_a_sample_has_the_first_of_the_ranking_and_some_of_the_rest(space, configs, seed):
    ranked = list(range(space))
    found = sample(ranked, configs, seed)
    assert len(set(found)) == len(found) == min(space, configs)
    assert set(found) >= set(range(min(space, math.ceil(configs * 0.6))))
    assert found == sample(ranked, configs, seed)
    favourites = min(space, 30, math.ceil(configs * 0.6))
    assert found[:favourites] == ranked[:favourites]
    if space >= 2 * configs >= 200:  # the rest is sampled from the whole ranking
        assert max(found) > configs


def test_batches_are_timed_beside_the_best_of_earlier_ones():
    measurer = FakeMeasurer(lambda hint: 1000.0 - hint)
    found = sweep(TASK, range(100), measurer, lambda: False)
    assert [m.hint for m in found] == list(range(100))
    sizes = [(len(hints), best) for hints, best in measurer.batches]
    assert sizes == [(30, []), (30, [971.0]), (30, [971.0]), (10, [911.0])]


def test_no_batch_begins_after_the_limit():
    measurer = FakeMeasurer(lambda hint: 1.0)
    found = sweep(TASK, range(200), measurer, lambda: len(measurer.batches) >= 3)
    assert len(found) == 90


def test_the_lower_quartile_of_the_turns_counts():
    turns = iter([5.0, 1.0, 2.0, 9.0, 3.0, 4.0, 8.0, 7.0])
    latency = remeasure(TASK, ["a"], FakeMeasurer(lambda hint: next(turns)))
    assert latency == {"a": 3.0}


def test_a_finalist_that_fails_is_named():
    with pytest.raises(ValueError, match="a must work, but gave: run: gone"):
        remeasure(TASK, ["a"], FakeMeasurer(lambda hint: "run: gone"))


def test_reasons_are_counted_once_a_configuration():
    failed = [Measured(n % 3, None, f"wrong result: off by 0.{n % 3}") for n in range(6)]
    found = reasons([*failed, Measured(7, None, "build: no"), Measured(8, 1.0, None)])
    assert found == {"wrong result: off by #.#": 3, "build: no": 1}
    row = RegretRow("x", "conv", failures=found, best_us=1, top1_us=1, tuned_us=1)
    assert (row.failed, row.wrong, row.right) == (4, 3, False)
    assert "4 (3 WRONG)" in regret.table([row], 20)


@pytest.fixture(scope="module")
def task():
    return operator_task("conv", same_convolution(8, 16, 12, 1), TARGET)


def _measured(table):
    """Return the time of a hint; the search also tries known hints without their prefetches."""
    bare = {hint.without_prefetch(): 99.0 for hint in table}
    return (bare | table).__getitem__


def test_regret_is_relative_to_the_best_candidate_of_all(task):
    ranked = DefaultPolicy(task.ours.func, TARGET.arch()).emit_config(99)
    assert len(ranked) > 4
    # The top-1 candidate takes 30 us, the last candidate of the search 10 us, the others 20 us.
    table = dict.fromkeys(ranked, 20.0) | {ranked[0]: 30.0, ranked[-1]: 10.0}
    row = regret.measure(
        task, TARGET.arch(), FakeMeasurer(_measured(table)), Settings(configs=99, topk=3)
    )
    assert row.right, row.problem
    assert (row.space, row.measured) == (len(ranked), len(ranked))
    assert (row.top1, row.tuned) == (pytest.approx(3.0), pytest.approx(2.0))
    assert row.configs["best"] == str(ranked[-1])


def test_a_choice_that_beats_the_sample_is_the_best(task):
    ranked = DefaultPolicy(task.ours.func, TARGET.arch()).emit_config(99)
    table = {hint: 10.0 + place for place, hint in enumerate(reversed(ranked))}
    row = regret.measure(
        task, TARGET.arch(), FakeMeasurer(_measured(table)), Settings(configs=1, topk=3)
    )
    assert row.measured == 1 and row.tuned == 1.0 and row.top1 > 1.0


def test_a_task_where_nothing_works_has_a_row_that_says_so(task):
    row = regret.measure(
        task, TARGET.arch(), FakeMeasurer(lambda hint: "build: no"), Settings(configs=5)
    )
    assert row.problem == "no configuration works" and not row.right
    assert row.failures.keys() == {"build: no"}
    assert "FAILED: no configuration works" in regret.table([row], 20)
    assert regret.means([row])["all"] == {"top-1": None, "tuned": None}


def test_means_are_geometric_of_all_and_by_kind():
    rows = [
        RegretRow("a", "conv", best_us=1.0, top1_us=2.0, tuned_us=1.0),
        RegretRow("b", "conv", best_us=1.0, top1_us=8.0, tuned_us=1.0),
        RegretRow("c", "rows", best_us=2.0, top1_us=2.0, tuned_us=2.0),
    ]
    found = regret.means(rows)
    assert found["conv"]["top-1"] == pytest.approx(4.0)
    assert found["all"]["top-1"] == pytest.approx(16 ** (1 / 3))
    assert found["all"]["tuned"] == pytest.approx(1.0)
