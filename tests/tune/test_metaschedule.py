"""Tests of strategy ``metaschedule``: budgets, warm start, failures, its artifacts."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.ir import IRModule

from tvmopt.errors import ConfigError, DatabaseMismatchError
from tvmopt.measure.devices import device_of
from tvmopt.measure.measurer import Candidates, Measurer
from tvmopt.tune import (
    DatabaseKey,
    MetaScheduleStrategy,
    TuneOptions,
    TuneResult,
    apply_database,
    canonical_target,
    extract_tasks,
    open_database,
)

from .models import (
    ARCH,
    TARGET,
    THREADS,
    conv_net,
    conv_net_inputs,
    conv_net_numpy,
    matmul_net,
    run,
    symbolic_net,
)

KEY = DatabaseKey(target=canonical_target(TARGET), threads=THREADS)
OPTIONS = TuneOptions(trials=8, time_budget_s=0, threads=THREADS)


def ignore(done: int, total: int, text: str) -> None:
    """A progress callback that shows nothing."""


def tune(
    work_dir: Path,
    mod: IRModule | None = None,
    progress=ignore,
    **changes,
) -> TuneResult:
    options = dataclasses.replace(OPTIONS, **changes)
    strategy = MetaScheduleStrategy()
    tasks = extract_tasks(mod or conv_net(), TARGET)
    return strategy.tune(tasks, TARGET, ARCH, options, work_dir, progress)


def no_default(task, arch):
    """Disable the default schedule, so that every measured record wins."""
    return task.mod, "unscheduled: for the test"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> tuple[TuneResult, Path]:
    """Run one search over the network, without a default schedule."""
    work_dir = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tvmopt.tune.metaschedule.schedule_task", no_default)
        return tune(work_dir), work_dir


def test_records_win_and_compute_the_same(tuned) -> None:
    result, _ = tuned
    assert result.trials == 8
    applied = apply_database(conv_net(), result.database_dir, KEY, TARGET)
    from_table = {task.name for task in result.tasks if task.source == "database"}
    assert applied.served == from_table
    assert result.tasks[0].name in applied.served
    inputs = conv_net_inputs()
    np.testing.assert_allclose(run(applied.mod, inputs), conv_net_numpy(*inputs), rtol=1e-3)


def test_the_table_adds_up(tuned) -> None:
    result, _ = tuned
    assert sum(task.trials for task in result.tasks) == result.trials
    for task in result.tasks:
        assert task.latency_us is not None
        assert task.gflops == pytest.approx(task.flops / task.latency_us / 1e3)
    totals = [r["best_total_us"] for r in result.log if r["best_total_us"] is not None]
    assert totals
    assert totals == sorted(totals, reverse=True)
    times = [record["elapsed_s"] for record in result.log]
    assert times == sorted(times)


def test_only_the_database_and_the_log_are_left(tuned) -> None:
    _, work_dir = tuned
    assert sorted(path.name for path in work_dir.iterdir()) == ["database", "search.log"]
    assert not (Path.cwd() / "logs").exists()
    assert "tvm.s_tir.tensor_intrin" not in sys.modules


def test_warm_start_serves_without_a_trial(
    tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvmopt.tune.metaschedule.schedule_task", no_default)
    earlier, _ = tuned
    again = tune(tmp_path, trials=0, warm_start=earlier.database_dir)
    assert again.trials == 0
    assert again.log == ()
    assert len(open_database(again.database_dir, KEY)) == len(
        open_database(earlier.database_dir, KEY)
    )
    before = apply_database(conv_net(), earlier.database_dir, KEY, TARGET).served
    after = apply_database(conv_net(), again.database_dir, KEY, TARGET).served
    assert after == before


@pytest.mark.slow  # the warm start above has none
def test_warm_start_spends_trials_where_nothing_is_known(
    tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvmopt.tune.metaschedule.schedule_task", no_default)
    earlier, _ = tuned
    joined = conv_net().clone()
    both = IRModule({**dict(joined.functions_items()), **_renamed(matmul_net(), "square")})
    again = tune(tmp_path, both, trials=4, warm_start=earlier.database_dir)
    assert {task.name for task in again.tasks if task.trials} == {"square"}


def _renamed(mod: IRModule, name: str) -> dict:
    """Add the functions of ``relu(x @ w)`` with an entry ``second`` that calls ``name``."""
    from tvm import relax

    builder = relax.BlockBuilder()
    [kernel] = [f for _, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    var = builder.add_func(kernel, name)
    x, w = (relax.Var(n, relax.TensorType((64, 64), "float32")) for n in ("x", "w"))
    with builder.function("second", [x, w]):
        out = builder.emit(relax.call_tir(var, (x, w), relax.TensorType((64, 64), "float32")))
        builder.emit_func_output(out)
    return dict(builder.get().functions_items())


def test_warm_start_for_something_else_is_refused(tuned, tmp_path: Path) -> None:
    earlier, _ = tuned
    with pytest.raises(DatabaseMismatchError, match=r"^threads of the tuning database"):
        tune(tmp_path, trials=0, threads=THREADS + 1, warm_start=earlier.database_dir)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="warm_start must be a tuning database directory"):
        tune(tmp_path, trials=0, warm_start=tmp_path / "missing")


@pytest.mark.slow
@pytest.mark.alone
def test_the_time_budget_holds(tmp_path: Path) -> None:
    started = time.monotonic()
    result = tune(tmp_path, trials=100_000, time_budget_s=15)
    assert time.monotonic() - started < 15 + 8
    assert 0 < result.trials < 100_000


@pytest.mark.slow  # the wrong result below is logged
def test_failures_are_logged_with_their_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvmopt.tune.metaschedule.make_context", unbuildable_context)
    result = tune(tmp_path, matmul_net(), trials=2)
    [task] = result.tasks
    assert task.failures == task.trials > 0
    assert task.source.startswith("default:")
    errors = [record["error"] for record in result.log if record["trial"] > 0]
    assert all(error.startswith("build: ") for error in errors)
    assert len(open_database(result.database_dir, KEY)) == 0


def test_a_wrong_default_schedule_is_called_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [other] = extract_tasks(matmul_net(relu=False), TARGET)
    monkeypatch.setattr("tvmopt.tune.metaschedule.make_context", unbuildable_context)
    monkeypatch.setattr(
        "tvmopt.tune.metaschedule.schedule_task", lambda task, arch: (other.mod, "tiles")
    )
    result = tune(tmp_path, matmul_net(), trials=1)
    assert result.log[0]["trial"] == 0
    assert "wrong result" in result.log[0]["error"]
    assert result.tasks[0].source.startswith("none:default schedule tiles failed: run: WrongResult")
    assert result.tasks[0].latency_us is None


def unbuildable_context(task, target, effort, seed, threads, logger):
    """Return a search whose candidates bind GPU threads, which do not compile for a CPU."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule import _ffi_api

    def bind(schedule) -> None:
        block = schedule.get_child_blocks(schedule.get_sblock("root"))[-1]
        schedule.bind(schedule.get_loops(block)[0], "threadIdx.x")

    space = ms.space_generator.ScheduleFn(bind, sch_rules=[], postprocs=[], mutator_probs={})
    search = ms.search_strategy.ReplayFunc()
    context = _ffi_api.TuneContext(task.mod, target, space, search, task.name, 1, seed, None)
    _ffi_api.TuneContextInitialize(context)
    return context


def test_a_wrong_result_is_a_failure(tmp_path: Path) -> None:
    [task] = extract_tasks(matmul_net(), TARGET)
    [other] = extract_tasks(matmul_net(relu=False), TARGET)
    candidates = [task.mod["main"], other.mod["main"]]
    with Measurer(device_of(ARCH), tmp_path) as measurer:
        group = Candidates(task.mod["main"], candidates, isolated=True)
        [[good, bad]] = measurer.measure([group])
    assert good.error is None
    assert bad.latency_us is None
    assert bad.error is not None
    assert bad.error.startswith("run: WrongResultError: wrong result: argument 2 is off by")


@pytest.mark.slow  # test_fast.py has an interrupt
def test_an_interrupt_leaves_a_usable_database(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, text: str) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, matmul_net(), progress=interrupt)
    assert len(open_database(tmp_path / "database", KEY)) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["database", "search.log"]


def test_symbolic_extents_are_left_to_the_default(tmp_path: Path) -> None:
    result = tune(tmp_path, symbolic_net(), trials=4)
    assert result.trials == 0
    assert result.tasks[0].latency_us is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": -1}, "trials must be at least 0, but got -1"),
        ({"time_budget_s": -2.0}, r"time_budget_s must be at least 0, but got -2\.0"),
        ({"threads": 0}, "threads must be at least 1, but got 0"),
    ],
)
def test_options_are_checked(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(tmp_path, **changes)


def test_other_targets_are_refused(tmp_path: Path) -> None:
    strategy = MetaScheduleStrategy()
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    with pytest.raises(ConfigError, match="target's kind must be 'llvm', but got 'cuda'"):
        strategy.tune((), cuda, ARCH, OPTIONS, tmp_path, ignore)
    single = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
    with pytest.raises(ConfigError, match="must have num-cores"):
        strategy.tune((), single, ARCH, OPTIONS, tmp_path, ignore)
