"""Tuning on a board, and without the board."""

from __future__ import annotations

import csv
import functools
import json
import shutil

import pytest
import tvm
from tvm import relax

from tvmopt.config import BuildConfig, TuneConfig
from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.errors import ConfigError
from tvmopt.stages.build import BUNDLE_DIR, build
from tvmopt.stages.tune import tune
from tvmopt.stages.tune_files import DATABASE_DIR, LOG_FILE, TASKS_FILE
from tvmopt.transform.lower import lower
from tvmopt.tune import (
    DatabaseKey,
    FastStrategy,
    MetaScheduleStrategy,
    TuneOptions,
    canonical_target,
    extract_tasks,
    open_database,
)

SPEC = resolve_target("host", 1)
TARGET = SPEC.to_dict()


@functools.cache
def matmul_net() -> tvm.IRModule:
    """``relu(x @ w)`` of two square matrices, with constant ``w``."""
    builder = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType((64, 64), "float32")) for n in "xw")
    with builder.function("main", [x, w], {"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.relu(builder.emit(relax.op.matmul(x, w))))
        builder.emit_func_output(out)
    return lower(builder.get(), SPEC.to_tvm())


def quiet(done: int, total: int, text: str) -> None:
    pass


@pytest.fixture
def run(conv_build, tmp_path):
    """Tune the session model."""

    def tune_model(target=TARGET, **options):
        out = tmp_path / "tune"
        out.mkdir()
        return tune(TuneConfig(target, **options), conv_build / "convert", out, quiet), out

    return tune_model


def _errors(out) -> list[str]:
    records = map(json.loads, (out / LOG_FILE).read_text().splitlines())
    return [record["error"] for record in records if record["error"]]


def test_fast_measures_there(run, of_board, conv_build, tmp_path):
    result, out = run(strategy="fast", topk=2, **of_board)
    assert result.tags["tvmopt.rpc_key"] == "own"
    assert result.metrics["tune_trials"] >= 6
    assert _errors(out) == []
    rows = list(csv.DictReader((out / TASKS_FILE).open()))
    assert any(row["latency_us"] for row in rows)
    assert (out / DATABASE_DIR).is_dir()
    made = tmp_path / "build"
    made.mkdir()
    built = build(BuildConfig("conv", TARGET), conv_build / "convert", out, "d1", made, quiet)
    assert built.metrics["golden_max_deviation"] < 1e-3
    assert (made / BUNDLE_DIR).is_dir()


@pytest.mark.slow
def test_metaschedule_measures_there(board, tmp_path):
    options = TuneOptions(trials=3, time_budget_s=0, threads=1, board=board)
    llvm, strategy = SPEC.to_tvm(), MetaScheduleStrategy()
    tasks = extract_tasks(matmul_net(), llvm)
    result = strategy.tune(tasks, llvm, SPEC.arch(), options, tmp_path, quiet)
    assert result.trials == 3
    assert [record["error"] for record in result.log] == [None] * 4  # with the default
    assert result.tasks[0].latency_us > 0
    assert len(open_database(result.database_dir, DatabaseKey(canonical_target(llvm), 1))) == 3


def test_no_such_board_is_found_before_any_work(run, of_board):
    with pytest.raises(ConfigError, match="but got 'pi5'"):
        run(strategy="fast", **{**of_board, "rpc_key": "pi5"})


def test_fast_without_a_board_takes_top_1_and_says_so(run, monkeypatch):
    monkeypatch.setattr(TargetSpec, "missing_on_host", lambda self: ("aarch64",))
    result, out = run(strategy="fast")
    reason = result.tags["tvmopt.unmeasured.tuning"]
    assert "lacks aarch64" in reason
    assert "top-1 of the cost model" in reason
    assert any("top-1" in line for line in result.changed)
    assert result.metrics["tune_trials"] == 0
    assert not (out / DATABASE_DIR).exists()


def test_metaschedule_without_a_board_is_refused(run, monkeypatch):
    monkeypatch.setattr(TargetSpec, "missing_on_host", lambda self: ("aarch64",))
    with pytest.raises(ConfigError, match=r"must measure on the target.*give rpc_tracker"):
        run(strategy="metaschedule", trials=2)


@pytest.mark.slow  # the test above tunes on the board
def test_for_another_cpu_candidates_are_built_for_it(board, tmp_path):
    """This machine rejects each candidate with a reason; the strategy still finishes."""
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("needs aarch64-linux-gnu-gcc (Debian: gcc-aarch64-linux-gnu)")
    spec = resolve_target("cortex-a76", 1)
    options = TuneOptions(trials=0, time_budget_s=0, threads=1, topk=2, board=board)
    result = FastStrategy(builders=1).tune(
        extract_tasks(matmul_net(), spec.to_tvm()), spec.to_tvm(), spec.arch(), options, tmp_path,
        quiet,
    )  # fmt: skip
    errors = [record["error"] for record in result.log]
    assert len(errors) == 2
    assert all("refused it" in error for error in errors)
    assert result.tasks[0].source.startswith("default:")
