"""Tests of the fast tuner: measurements, its database, rejected options."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.s_tir import meta_schedule as ms

from tests.libraries import loaded
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError, DatabaseMismatchError
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledConfig
from tvmopt.kernels.emit import hint_from_dict
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.measure.measurer import Measurer
from tvmopt.transform.lower import lower
from tvmopt.transform.prepack import prepack
from tvmopt.tune import (
    DatabaseKey,
    FastStrategy,
    TuneOptions,
    TuneResult,
    apply_database,
    canonical_target,
    extract_tasks,
    open_database,
)
from tvmopt.tune.apply_and_build import ApplyFastTuning, apply_and_build
from tvmopt.tune.database import RECORD_FILE, WORKLOAD_FILE, create_database, read_comparisons

THREADS = 2
SPEC = resolve_target("host", THREADS)
TARGET, ARCH = SPEC.to_tvm(), SPEC.arch()
TOPK = 4
KEY = DatabaseKey(canonical_target(TARGET), THREADS)
OPTIONS = TuneOptions(trials=0, time_budget_s=0.0, threads=THREADS, topk=TOPK)
_RNG = np.random.default_rng(0)
_WEIGHTS = [
    _RNG.standard_normal(shape, np.float32) for shape in [(3, 3, 8, 24), (1, 1, 24, 16), (16, 10)]
]
_X = _RNG.standard_normal((1, 12, 12, 8), np.float32)


@pytest.fixture(scope="module")
def net() -> tvm.IRModule:
    """Lower 1x12x12x8 -> conv 3x3 -> conv 1x1 -> mean -> dense, with constant weights."""
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(_X.shape, "float32"))
    w3, w1, dense = (relax.const(w) for w in _WEIGHTS)
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.relu(relax.op.nn.conv2d(x, w3, padding=1, **layout)))
            y = builder.emit(relax.op.nn.relu(relax.op.nn.conv2d(y, w1, **layout)))
            y = builder.emit(relax.op.mean(y, [1, 2]))
            out = builder.emit_output(relax.op.matmul(y, dense))
        builder.emit_func_output(out)
    return lower(builder.get(), TARGET)


def expected() -> np.ndarray:
    """Return the result of :func:`net` for ``_X``."""
    w3, w1, dense = (w.astype("float64") for w in _WEIGHTS)
    padded = np.pad(_X[0], ((1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(0, 1))
    y = np.maximum(np.einsum("hwcij,ijco->hwo", windows, w3), 0)
    y = np.maximum(y @ w1[0, 0], 0)
    return y.mean((0, 1))[None] @ dense


def run(path: Path) -> np.ndarray:
    return loaded(path)(_X)[0]


def tune(mod: tvm.IRModule, work_dir: Path, **changes) -> TuneResult:
    options = dataclasses.replace(OPTIONS, **changes)
    tasks = extract_tasks(mod, TARGET)
    return FastStrategy().tune(tasks, TARGET, ARCH, options, work_dir, lambda *_: None)


def scheduled(mod: tvm.IRModule) -> dict[str, bool]:
    """Return whether every TensorIR function is scheduled."""
    return {
        var.name_hint: bool((func.attrs or {}).get("tirx.is_scheduled", False))
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


@pytest.fixture(scope="module")
def tuned(net, tmp_path_factory) -> TuneResult:
    """One run from an empty database."""
    return tune(net, tmp_path_factory.mktemp("fast"))


@pytest.mark.alone
def test_every_task_has_a_record_and_a_row(net, tuned: TuneResult) -> None:
    assert tuned.strategy == "fast"
    assert tuned.database_dir is not None
    tasks = extract_tasks(net, TARGET)
    assert len(tasks) >= 3
    assert [row.name for row in tuned.tasks] == [task.name for task in tasks]
    assert len(open_database(tuned.database_dir, KEY)) == len(tasks)
    compared = read_comparisons(tuned.database_dir)
    assert len(compared) == len(tasks)
    for comparison in compared.values():
        assert comparison.tuned_us is not None
        assert comparison.default_us is None or comparison.tuned_us <= comparison.default_us
        assert comparison.config is not None
        assert hint_from_dict(comparison.config).arch == ARCH
    for row in tuned.tasks:
        assert row.latency_us is not None
        assert row.latency_us > 0
        assert 1 <= row.trials <= TOPK
        assert row.failures == 0


def test_the_log_names_each_configuration(net, tuned: TuneResult) -> None:
    assert len(tuned.log) == tuned.trials
    funcs = {task.name: task.mod["main"] for task in extract_tasks(net, TARGET)}
    ids: dict[str, list[str]] = {name: [] for name in funcs}
    beyond: dict[str, set[str]] = {}
    for name, func in funcs.items():
        hints = [r.hint for r in DefaultPolicy(func, ARCH).ranked]
        # Beyond the ranking is what the tuner derives itself: without prefetches.
        derived = filter(None, (hint.without_prefetch() for hint in hints))
        ids[name] = [hint.config_id for hint in hints]
        beyond[name] = {hint.config_id for hint in derived}
    seen = set()
    for record in tuned.log:
        json.dumps(record, allow_nan=False)
        assert (record["error"] is None) == (record["latency_us"] is not None)
        ranked = ids[record["task"]]
        if record["rank"] < len(ranked):
            assert ranked[record["rank"]] == record["config_id"]
        else:
            assert record["config_id"] in beyond[record["task"]]
        assert record["modelled_cycles"] > 0
        seen.add((record["task"], record["config_id"]))
    assert len(seen) == len(tuned.log), "a configuration was measured twice"
    # Top-1 is always among those measured: reports say what tuning won over it.
    assert {r["task"] for r in tuned.log if r["rank"] == 0} == set(funcs)
    assert [r["elapsed_s"] for r in tuned.log] == sorted(r["elapsed_s"] for r in tuned.log)


def test_the_database_replays_through_tvm_alone(net, tuned: TuneResult) -> None:
    assert tuned.database_dir is not None
    database = ms.database.JSONDatabase(
        path_workload=str(tuned.database_dir / WORKLOAD_FILE),
        path_tuning_record=str(tuned.database_dir / RECORD_FILE),
    )
    with TARGET, database, tvm.transform.PassContext(opt_level=3):
        applied = relax.transform.MetaScheduleApplyDatabase()(net)
    assert all(scheduled(applied).values())
    executable = tvm.compile(prepack(applied), TARGET)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(_X)).numpy()
    np.testing.assert_allclose(got, expected(), rtol=1e-4, atol=1e-4)


def test_a_library_with_the_database_is_right(net, tuned: TuneResult, tmp_path: Path) -> None:
    library = build_library(net, SPEC, tmp_path / "net.so", database_dir=tuned.database_dir)
    compared = read_comparisons(tuned.database_dir) if tuned.database_dir else {}
    wins = sum(comparison.record_wins for comparison in compared.values())
    assert list(library.sources.values()).count("database") == wins
    np.testing.assert_allclose(run(library.path), expected(), rtol=1e-4, atol=1e-4)


def test_a_warm_start_measures_nothing(net, tuned: TuneResult, tmp_path: Path) -> None:
    again = tune(net, tmp_path, warm_start=tuned.database_dir)
    assert again.trials == 0
    assert again.log == ()
    assert again.database_dir == tmp_path / "database"
    assert [(t.name, t.source, t.latency_us) for t in again.tasks] == [
        (t.name, t.source, t.latency_us) for t in tuned.tasks
    ]
    applied = apply_database(net, again.database_dir, KEY, TARGET, losers=True)
    assert applied.served == set(scheduled(net))
    assert all(scheduled(applied.mod).values())


def test_what_earlier_databases_know_is_not_measured_again(
    net, tuned: TuneResult, tmp_path: Path
) -> None:
    foreign, work = tmp_path / "foreign", tmp_path / "work"
    work.mkdir()
    create_database(foreign, dataclasses.replace(KEY, threads=KEY.threads + 1))
    again = tune(net, work, earlier=(foreign, tuned.database_dir, tuned.database_dir))
    assert again.trials == 0
    assert [t.source for t in again.tasks] == [t.source for t in tuned.tasks]
    assert again.database_dir is not None and tuned.database_dir is not None
    # The database is given twice, but each record is stored once.
    assert len(open_database(again.database_dir, KEY)) == len(
        open_database(tuned.database_dir, KEY)
    )


def test_a_database_for_two_threads_is_not_used_for_one(
    net, tuned: TuneResult, tmp_path: Path
) -> None:
    one = resolve_target("host", 1)
    with pytest.raises(DatabaseMismatchError, match=r"must be .* but got .*; tune again"):
        build_library(net, one, tmp_path / "net.so", database_dir=tuned.database_dir)
    assert not (tmp_path / "net.so").exists()
    options = dataclasses.replace(OPTIONS, threads=1, warm_start=tuned.database_dir)
    with pytest.raises(DatabaseMismatchError, match="of the tuning database"):
        FastStrategy().tune(
            extract_tasks(net, one.to_tvm()), one.to_tvm(), one.arch(), options, tmp_path / "work",
            lambda *_: None,
        )  # fmt: skip
    # The number of threads decides, whatever cores the target names.
    key = dataclasses.replace(KEY, threads=1)
    with pytest.raises(DatabaseMismatchError, match=r"^threads of the tuning database"):
        apply_database(net, tuned.database_dir, key, TARGET)


def test_a_database_of_another_cpu_is_not_used_here(net, tuned: TuneResult, tmp_path: Path) -> None:
    other = resolve_target("nehalem" if SPEC.isa == "x86_64" else "cortex-a53", THREADS)
    assert other.mcpu != SPEC.mcpu
    with pytest.raises(DatabaseMismatchError, match=r"^target of the tuning database") as caught:
        build_library(net, other, tmp_path / "net.so", database_dir=tuned.database_dir)
    assert other.mcpu in str(caught.value)
    assert SPEC.mcpu in str(caught.value)
    options = dataclasses.replace(OPTIONS, warm_start=tuned.database_dir)
    with pytest.raises(DatabaseMismatchError, match=r"^target of the tuning database"):
        FastStrategy().tune(
            extract_tasks(net, other.to_tvm()), other.to_tvm(), other.arch(), options,
            tmp_path / "work", lambda *_: None,
        )  # fmt: skip


def test_a_spent_budget_leaves_a_usable_database(net, tmp_path: Path) -> None:
    result = tune(net, tmp_path, time_budget_s=1e-3)
    assert result.trials == 0
    assert len(result.tasks) == len(extract_tasks(net, TARGET))
    assert all(row.source.startswith("default:") for row in result.tasks)
    assert result.database_dir is not None
    assert len(open_database(result.database_dir, KEY)) == 0
    library = build_library(net, SPEC, tmp_path / "net.so", database_dir=result.database_dir)
    assert all(source.startswith("default:") for source in library.sources.values())
    np.testing.assert_allclose(run(library.path), expected(), rtol=1e-4, atol=1e-4)


def test_the_first_functions_are_few_so_that_a_short_time_leaves_results() -> None:
    from tvmopt.tune.fast_search import _groups

    states: list[Any] = list(range(25))
    groups = list(_groups(states))
    assert [len(group) for group in groups] == [2, 4, 8, 8, 3]
    assert [state for group in groups for state in group] == states
    assert list(_groups([])) == []


@pytest.mark.alone
def test_an_interrupt_keeps_what_is_finished(net, tmp_path: Path, monkeypatch) -> None:
    from tvmopt.tune import fast_search

    monkeypatch.setattr(fast_search, "_FIRST_GROUPS", (1,))

    def stop(done: int, total: int, text: str) -> None:
        raise KeyboardInterrupt

    tasks = extract_tasks(net, TARGET)
    with pytest.raises(KeyboardInterrupt):
        FastStrategy().tune(tasks, TARGET, ARCH, OPTIONS, tmp_path, stop)
    assert len(open_database(tmp_path / "database", KEY)) == 1
    assert len(read_comparisons(tmp_path / "database")) == 1


@pytest.mark.slow  # tests/stages/test_tune_layers.py times alternatives
@pytest.mark.alone
def test_alternatives_are_timed_together(net, tmp_path: Path, monkeypatch) -> None:
    names = tuple(task.name for task in extract_tasks(net, TARGET)[:2])
    real, timed = Measurer.time_together, []

    def time_together(self, functions, weight_bytes):
        timed.append(real(self, functions, weight_bytes))
        return [7.0, 9.0]

    monkeypatch.setattr(Measurer, "time_together", time_together)
    result = tune(net, tmp_path, topk=1, alternatives=(names,))
    assert {row.name: row.latency_us for row in result.tasks if row.name in names} == dict(
        zip(names, (7.0, 9.0), strict=True)
    )
    [latencies] = timed
    assert len(latencies) == 2
    assert all(us > 0 for us in latencies)
    assert {row.source for row in result.tasks} == {"database"}


def test_options_are_checked(net, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="topk must be at least 1, but got 0"):
        tune(net, tmp_path, topk=0)


@pytest.mark.slow  # as every task above
@pytest.mark.alone
def test_apply_and_build_gives_one_result_a_configuration(net) -> None:
    func = extract_tasks(net, TARGET)[0].mod["main"]
    configs = DefaultPolicy(func, ARCH).emit_config(3)
    unfit = UnmodelledConfig("elementwise", ARCH)
    results, best = apply_and_build(func, [*configs, unfit], ARCH)
    assert [r.config for r in results] == [*configs, unfit]
    assert all(r.latency is not None and r.error is None for r in results[:3])
    assert results[3].latency is None
    assert "elementwise: it has a reduction" in str(results[3].error)
    assert best is not None
    assert best.latency == min(r.latency for r in results[:3] if r.latency is not None)
    assert best.sch.mod["main"].attrs is not None
    assert "T.vectorized" in best.sch.mod.script()


def test_apply_and_build_without_a_good_configuration(net) -> None:
    func = extract_tasks(net, TARGET)[0].mod["main"]
    results, best = apply_and_build(
        func, [UnmodelledConfig("elementwise", ARCH)], ARCH, parallel_build=False
    )
    assert best is None
    assert results[0].error is not None


def test_apply_and_build_needs_configurations(net) -> None:
    func = extract_tasks(net, TARGET)[0].mod["main"]
    with pytest.raises(ConfigError, match="configs must hold at least one configuration"):
        apply_and_build(func, [], ARCH)


@pytest.mark.slow  # tests/tune/test_apply.py applies schedules
@pytest.mark.alone
def test_the_pass_schedules_everything_and_then_measures_nothing(
    net, tmp_path: Path, monkeypatch
) -> None:

    groups: list[int] = []
    measure = Measurer.measure

    def counted(self, candidates, stop=lambda: False):
        groups.append(len(candidates))
        return measure(self, candidates, stop)

    monkeypatch.setattr(Measurer, "measure", counted)
    apply = ApplyFastTuning(topk=2, target=SPEC, meta_database_dir=tmp_path / "database")
    first = apply(net)
    assert not any(scheduled(net).values())
    assert all(scheduled(first).values())
    assert sum(groups) > 0
    records = (tmp_path / "database" / RECORD_FILE).read_text()
    groups.clear()
    tvm.ir.assert_structural_equal(apply(net), first)
    assert sum(groups) == 0
    assert (tmp_path / "database" / RECORD_FILE).read_text() == records
