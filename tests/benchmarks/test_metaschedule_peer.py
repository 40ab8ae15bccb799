"""Tests of the comparison with MetaSchedule: time budgets, what is counted, wrong results."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks import metaschedule_peer
from benchmarks.interleave import Timing
from benchmarks.metaschedule_peer import PeerRow, compare, faster, table
from benchmarks.operators import MatMul
from benchmarks.tuning_tasks import operator_task
from tvmopt.device.target import resolve_target

TARGET = resolve_target("host", 1)


@pytest.fixture(scope="module")
def task():
    return operator_task("matmul", MatMul(16, 24, 32), TARGET)


@pytest.fixture
def untuned(monkeypatch):
    """Replace the strategies with stubs that record their arguments."""
    asked = {}

    def tuned(strategy, module, target, scratch, **limits):
        asked[strategy] = (module, limits)
        log = [{"error": "run: gone"}, {"error": "run: gone"}, {"error": None}]
        return SimpleNamespace(seconds=3.0, trials=2, database_dir=None, log=log)

    monkeypatch.setattr(metaschedule_peer, "tuned", tuned)
    monkeypatch.setattr(metaschedule_peer, "_replayed", lambda module, *_: (module, False))
    return asked


@pytest.mark.slow
def test_both_are_tuned_replayed_checked_and_timed(task, monkeypatch):
    monkeypatch.setattr(metaschedule_peer, "_TRIALS", 4)
    row = compare(task, TARGET, topk=2, seconds=0.2)
    assert row.right and not row.note, row
    assert row.trials == {"fast": 2, "metaschedule": 4}
    assert row.timings["fast"].calls > 0 and row.timings["metaschedule"].calls > 0
    assert faster([row])[1] == 1
    assert "| matmul_16x24x32 |" in table([row])


def test_metaschedule_gets_ten_times_the_time_and_the_plain_kernel(task, untuned):
    row = compare(task, TARGET, topk=7, seconds=0.1)
    assert untuned["fast"] == (task.ours.module, {"topk": 7})
    module, limits = untuned["metaschedule"]
    assert module is task.plain.module
    assert limits["time_budget_s"] == pytest.approx(30.0)
    # Without a tuning record the time is reported, but not counted.
    assert row.right and row.note.endswith("2 x run: gone")
    assert faster([row]) == (0, 0)


def test_results_that_differ_are_wrong(task, untuned, monkeypatch):
    right = metaschedule_peer.library_call

    def off(path, arrays):
        call = right(path, arrays)
        return (lambda: [call()[0] + 0.1]) if path.name == "fast.so" else call

    monkeypatch.setattr(metaschedule_peer, "library_call", off)
    row = compare(task, TARGET, topk=1, seconds=0.1)
    assert not row.right and "WRONG" in table([row])
    assert faster([row]) == (0, 0)


def test_a_task_that_fails_has_a_row_that_says_so(task, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no\nway")

    monkeypatch.setattr(metaschedule_peer, "tuned", fail)
    row = compare(task, TARGET, topk=1, seconds=0.1)
    assert row.problem == "no way" and not row.right
    assert "FAILED: no way" in table([row])


@pytest.mark.parametrize(("theirs_ms", "won"), [(2.0, 1), (0.5, 0)])
def test_ratio_is_theirs_by_ours(theirs_ms, won):
    times = {"fast": 1.0, "metaschedule": theirs_ms}
    timings = {name: Timing(ms, ms, ms, 9, 9) for name, ms in times.items()}
    row = PeerRow("x", "conv", timings, {"fast": 1.0, "metaschedule": 10.0}, error=0.0)
    assert row.ratio == pytest.approx(theirs_ms)
    assert faster([row]) == (won, 1)
