"""The contract of every tuning strategy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tvm_ffi

from tvmopt.errors import ConfigError
from tvmopt.tune import (
    STRATEGIES,
    DatabaseKey,
    TuneOptions,
    TuneResult,
    canonical_target,
    create_strategy,
    extract_tasks,
    open_database,
    plot_convergence,
    task_rows,
    write_task_csv,
    write_task_markdown,
)

from .models import ARCH, TARGET, THREADS, conv_net

TRIALS = 10
LOG_FIELDS = {"elapsed_s", "task", "trial", "latency_us", "error", "best_total_us"}


# test_metaschedule.py runs MetaSchedule by default.
_SLOW = [pytest.param("metaschedule", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=[*sorted(set(STRATEGIES) - {"metaschedule"}), *_SLOW])
def ran(request, tmp_path_factory):
    """Run a strategy; return result, directory, progress calls and initial hash of the module."""
    work_dir = tmp_path_factory.mktemp(request.param)
    calls: list[tuple[int, int, str]] = []
    before = tvm_ffi.structural_hash(conv_net())
    options = TuneOptions(trials=TRIALS, time_budget_s=0, threads=THREADS, topk=2)
    capture = request.config.pluginmanager.getplugin("capturemanager")
    capture.read_global_capture()
    result = create_strategy(request.param).tune(
        extract_tasks(conv_net(), TARGET), TARGET, ARCH, options, work_dir,
        lambda *call: calls.append(call),
    )  # fmt: skip
    printed = capture.read_global_capture().out
    return request.param, result, work_dir, calls, before, printed


def test_the_result_names_the_strategy_and_every_task(ran) -> None:
    name, result, *_ = ran
    assert isinstance(result, TuneResult)
    assert result.strategy == name
    tasks = extract_tasks(conv_net(), TARGET)
    assert [(t.name, t.shape, t.weight, t.flops) for t in result.tasks] == [
        (t.name, t.shape, t.weight, t.flops) for t in tasks
    ]


def test_every_task_says_what_serves_it(ran) -> None:
    _, result, *_ = ran
    for task in result.tasks:
        assert task.source == "database" or task.source.startswith(("default:", "none:"))
        assert (task.latency_us is None) == (task.gflops is None)
        assert 0 <= task.failures <= task.trials


def test_trials_stay_within_the_budget(ran) -> None:
    _, result, *_ = ran
    assert sum(task.trials for task in result.tasks) == result.trials <= TRIALS
    assert result.seconds > 0


def test_the_log_is_json_with_known_fields(ran) -> None:
    _, result, *_ = ran
    assert sum(record["trial"] > 0 for record in result.log) == result.trials
    for record in result.log:
        assert set(record) >= LOG_FIELDS
        assert (record["latency_us"] is None) != (record["error"] is None)
        json.dumps(record, allow_nan=False)


def test_a_database_opens_under_its_key(ran) -> None:
    _, result, work_dir, *_ = ran
    if result.database_dir is None:
        assert not list(work_dir.iterdir())
        return
    assert result.database_dir.is_relative_to(work_dir)
    key = DatabaseKey(target=canonical_target(TARGET), threads=THREADS)
    assert len(open_database(result.database_dir, key)) <= result.trials


def test_progress_goes_forward_and_names_the_task(ran) -> None:
    _, _, _, calls, *_ = ran
    assert calls
    done = [call[0] for call in calls]
    assert done == sorted(done)
    assert all(0 <= done <= total for done, total, _ in calls)


def test_the_module_is_unchanged_and_nothing_is_printed(ran) -> None:
    *_, before, printed = ran
    assert tvm_ffi.structural_hash(conv_net()) == before
    assert printed == ""


def test_reports(ran, tmp_path: Path) -> None:
    _, result, *_ = ran
    rows = task_rows(result.tasks)
    assert [row["task"] for row in rows] == [task.name for task in result.tasks]
    csv_lines = write_task_csv(result.tasks, tmp_path / "tasks.csv").read_text().splitlines()
    markdown = write_task_markdown(result.tasks, tmp_path / "tasks.md").read_text().splitlines()
    assert len(csv_lines) == len(markdown) - 1 == len(rows) + 1
    plot = plot_convergence(result, tmp_path / "convergence.png")
    if result.log:
        assert plot is not None
        assert plot.read_bytes().startswith(b"\x89PNG")
    else:
        assert plot is None


def test_an_unknown_strategy_is_refused() -> None:
    rule = "strategy must be one of none, default, fast, metaschedule"
    with pytest.raises(ConfigError, match=f"{rule}, but got 'fastest'"):
        create_strategy("fastest")
