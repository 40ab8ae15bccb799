"""Databases of operators, applied to the functions that contain them as anchor."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.libraries import loaded
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.errors import DatabaseMismatchError
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledConfig
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.emit import emit
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.kernels.scheduled import REWRITTEN_ATTR
from tvmopt.transform.lower import lower
from tvmopt.tune import (
    DatabaseKey,
    TuneOptions,
    apply_database,
    canonical_target,
    create_database,
    create_strategy,
    extract_tasks,
    open_database,
)
from tvmopt.tune.database import (
    META_FILE,
    Comparison,
    commit_record,
    granularity_of,
    workload_hash,
    write_comparisons,
)
from tvmopt.tune.operator import operator_function
from tvmopt.tune.transfer import transfer_hints

from .fused import sampled_traces
from .models import ARCH, SPEC, TARGET, THREADS

SUBGRAPH = DatabaseKey(canonical_target(TARGET), THREADS)
KEY = dataclasses.replace(SUBGRAPH, granularity="operator")
NO_ANCHOR = "no anchor operator: nothing in it is summed up"
_RNG = np.random.default_rng(0)
_X = _RNG.standard_normal((1, 8, 8, 8), np.float32)
_W3, _W1, _BIAS, _DENSE = (
    _RNG.standard_normal(shape, np.float32)
    for shape in [(3, 3, 8, 16), (1, 1, 16, 16), (16,), (16, 10)]
)


@pytest.fixture(scope="module")
def net() -> tvm.IRModule:
    """conv 3x3 -> conv 1x1 with bias and relu -> the same clipped -> mean -> dense -> twice."""
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    op, nn = relax.op, relax.op.nn
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(_X.shape, "float32"))
    w3, w1, bias, dense = (relax.const(w) for w in (_W3, _W1, _BIAS, _DENSE))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            y = builder.emit(nn.relu(nn.conv2d(x, w3, padding=1, **layout)))
            y = builder.emit(nn.relu(op.add(nn.conv2d(y, w1, **layout), bias)))
            y = builder.emit(op.clip(nn.conv2d(y, w1, **layout), -1, 1))
            y = builder.emit(op.matmul(op.mean(y, [1, 2]), dense))
            out = builder.emit_output(op.concat([y, y], 0))
        builder.emit_func_output(out)
    return lower(builder.get(), TARGET)


def expected() -> np.ndarray:
    """Return the result of :func:`net` for ``_X``."""
    padded = np.pad(_X[0].astype("float64"), ((1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(0, 1))
    y = np.maximum(np.einsum("hwcij,ijco->hwo", windows, _W3), 0)
    y = np.maximum(y @ _W1[0, 0] + _BIAS, 0)
    y = np.clip(y @ _W1[0, 0], -1, 1)
    return np.repeat(y.mean((0, 1))[None] @ _DENSE, 2, 0)


def anchored(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    """Return the TensorIR functions of :func:`net` with an anchor, by name."""
    return {
        var.name_hint: func
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and "concatenate" not in var.name_hint
    }


def assert_right(path: Path) -> None:
    [got] = loaded(path)(_X)
    np.testing.assert_allclose(got, expected(), rtol=1e-4, atol=1e-4)


def alone(func: tirx.PrimFunc) -> tvm.IRModule:
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def operators(net: tvm.IRModule) -> list:
    return [task for task in extract_tasks(net, TARGET, "operator") if not task.left_out]


@pytest.fixture(scope="module")
def traces_dir(net, tmp_path_factory) -> Path:
    """A database of two sampled traces of each operator."""
    directory = tmp_path_factory.mktemp("traces")
    database = create_database(directory, KEY)
    for task in operators(net):
        for n, trace in enumerate(sampled_traces(task.mod["main"], 2)):
            commit_record(database, task.mod, trace, 10.0 + n, TARGET)
    return directory


# ---- traces ----


def test_every_function_with_an_anchor_is_served(net, traces_dir: Path) -> None:
    assert len(operators(net)) == len(anchored(net)) - 1, "two functions share one"
    applied = apply_database(net, traces_dir, KEY, TARGET)
    assert applied.granularity == "operator"
    assert applied.served == set(anchored(net))
    [(name, reason)] = applied.missing.items()
    assert name.startswith("concatenate")
    assert reason == NO_ANCHOR
    for name, func in anchored(applied.mod).items():
        assert func.attrs["tirx.is_scheduled"], name
    other = next(v for v in net.get_global_vars() if v.name_hint.startswith("concatenate"))
    tvm.ir.assert_structural_equal(applied.mod[other.name_hint], net[other])
    assert not any((f.attrs or {}).get("tirx.is_scheduled") for f in anchored(net).values())


def test_a_library_of_traces_computes_the_same(net, traces_dir: Path, tmp_path: Path) -> None:
    library = build_library(net, SPEC, tmp_path / "net.so", database_dir=traces_dir)
    assert_right(library.path)
    served = set(anchored(net))
    assert {name for name, source in library.sources.items() if source == "database"} == served
    records = dict.fromkeys(served, "operator")
    [other] = set(library.sources) - served
    assert library.records == records | {other: f"none: {NO_ANCHOR}"}
    assert library.sources[other].startswith("default:")


def test_the_fastest_trace_that_fits_is_applied(net, traces_dir: Path, tmp_path: Path) -> None:
    """A faster record is skipped when its trace does not apply to the function."""
    database = create_database(tmp_path, KEY)
    task = operators(net)[0]
    fits, slower = sampled_traces(task.mod["main"], 2)
    # It fits the operator, but the reduction is outermost, so no tile can hold the epilogue.
    schedule = tvm.s_tir.Schedule(task.mod)
    block = schedule.get_sblock("conv2d_nhwc")
    loops = schedule.get_loops(block)
    schedule.reorder(*loops[4:], *loops[:4])
    for trace, microseconds in ((slower, 3.0), (fits, 2.0), (schedule.trace, 1.0)):
        commit_record(database, task.mod, trace, microseconds, TARGET)
    applied = apply_database(net, tmp_path, KEY, TARGET)
    [name] = applied.served
    both = apply_database(net, traces_dir, KEY, TARGET)  # there, the first trace is the fastest
    tvm.ir.assert_structural_equal(applied.mod[name], both.mod[name])
    assert set(applied.missing) == set(anchored(net)) - {name} | {*both.missing}
    assert sorted(set(applied.missing.values())) == [NO_ANCHOR, "no record of its operator"]


def test_why_no_trace_fits_is_said(net, tmp_path: Path) -> None:
    database = create_database(tmp_path, KEY)
    task = operators(net)[0]
    schedule = tvm.s_tir.Schedule(task.mod)
    loops = schedule.get_loops(schedule.get_sblock("conv2d_nhwc"))
    schedule.reorder(*loops[4:], *loops[:4])
    commit_record(database, task.mod, schedule.trace, 1.0, TARGET)
    applied = apply_database(net, tmp_path, KEY, TARGET)
    assert applied.served == set()
    [reason] = set(applied.missing.values()) - {NO_ANCHOR, "no record of its operator"}
    assert reason == (
        "no schedule of its operator fits: the trace leaves no loop in which a tile is finished"
    )


def test_a_trace_that_lost_is_applied_on_demand_alone(net, traces_dir: Path, tmp_path) -> None:
    task = operators(net)[0]
    database = create_database(tmp_path, KEY)
    commit_record(database, task.mod, sampled_traces(task.mod["main"], 1)[0], 10.0, TARGET)
    key = workload_hash(task.mod)
    write_comparisons(tmp_path, {key: Comparison("register_tile", default_us=4.0, tuned_us=10.0)})
    lost = apply_database(net, tmp_path, KEY, TARGET)
    assert lost.served == set()
    assert "the default schedule was measured to be faster than its record" in lost.missing.values()
    assert len(apply_database(net, tmp_path, KEY, TARGET, losers=True).served) == 1


# ---- hints ----


def test_the_next_hint_is_taken_where_the_best_does_not_fit(net, tmp_path: Path) -> None:
    task = operators(net)[0]
    best, second = (r.hint for r in DefaultPolicy(task.mod["main"], ARCH).ranked[:2])
    unfit = UnmodelledConfig("elementwise", ARCH)
    database = create_database(tmp_path, KEY)
    commit_record(database, task.mod, tvm.s_tir.Schedule(task.mod).trace, 1.0, TARGET)
    name = task.name.split(" of ")[1]
    func = net[name].with_attr("global_symbol", name)

    def applied(*hints: CpuHint):
        config, *others = (hint.to_dict() for hint in hints)
        compared = Comparison("register_tile", 2.0, 1.0, config, tuple(others))
        write_comparisons(tmp_path, {workload_hash(task.mod): compared})
        return apply_database(net, tmp_path, KEY, TARGET)

    for hints, taken in (((best, second), best), ((unfit, second, best), second)):
        found = applied(*hints)
        assert found.served == {name}
        tvm.ir.assert_structural_equal(found.mod[name], transfer_hints(func, [taken]))
    refused = applied(unfit)
    assert refused.served == set()
    assert refused.missing[name] == (
        "no schedule of its operator fits: elementwise: it has a reduction"
    )


def test_a_kernel_of_a_rewritten_function_needs_no_trace(tmp_path: Path) -> None:
    """19 rows of AMX tiles: the function is rewritten to whole blocks before it is scheduled."""
    spec = resolve_target("sapphirerapids", THREADS)
    operands = [((1, 3, 19, 64), "bfloat16"), ((1, 1, 64, 32), "bfloat16")]
    builder = relax.BlockBuilder()
    x, w = (relax.Var(f"x{n}", relax.TensorType(*of)) for n, of in enumerate(operands))
    layout = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_dtype": "float32"}
    with builder.function("main", [x, w], {"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.conv2d(x, w, **layout))
        builder.emit_func_output(out)
    mod = lower(builder.get(), spec.to_tvm())
    [(var, func)] = [f for f in mod.functions_items() if isinstance(f[1], tirx.PrimFunc)]
    ranked = DefaultPolicy(func, spec.arch()).ranked
    hint = next(r.hint for r in ranked if r.hint.register_tile == (16, 32))
    assert emit(func, hint).mod["main"].attrs[REWRITTEN_ATTR]
    key = DatabaseKey(canonical_target(spec.to_tvm()), THREADS)
    create_database(tmp_path, key)
    task = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    compared = Comparison("matrix_tile", 2.0, 1.0, hint.to_dict())
    write_comparisons(tmp_path, {workload_hash(task): compared})
    applied = apply_database(mod, tmp_path, key, spec.to_tvm())
    assert applied.served == {var.name_hint}
    kernel = applied.mod[var]
    assert [list(map(int, p.shape)) for p in kernel.params] == [
        [1, 3, 19, 64], [1, 1, 64, 32], [1, 3, 19, 32]
    ]  # fmt: skip
    assert REWRITTEN_ATTR not in kernel.attrs


# ---- keys ----


@pytest.mark.parametrize(("made", "asked"), [(KEY, SUBGRAPH), (SUBGRAPH, KEY)])
def test_the_other_granularity_is_refused(net, tmp_path: Path, made, asked) -> None:
    create_database(tmp_path, made)
    rule = (
        f"granularity of the tuning database .* must be '{asked.granularity}', but got "
        f"'{made.granularity}'; tune again"
    )
    for refused in (
        lambda: open_database(tmp_path, asked),
        lambda: create_database(tmp_path, asked),
        lambda: apply_database(net, tmp_path, asked, TARGET),
    ):
        with pytest.raises(DatabaseMismatchError, match=rule):
            refused()


def test_a_warm_start_from_the_other_granularity_is_refused(net, tmp_path: Path) -> None:
    create_database(tmp_path / "earlier", SUBGRAPH)
    options = TuneOptions(
        trials=1, time_budget_s=0.0, threads=THREADS, granularity="operator",
        warm_start=tmp_path / "earlier",
    )  # fmt: skip
    tasks = extract_tasks(net, TARGET, "operator")
    for strategy in ("fast", "metaschedule"):
        with pytest.raises(DatabaseMismatchError, match=r"^granularity of the tuning database"):
            create_strategy(strategy).tune(
                tasks, TARGET, ARCH, options, tmp_path / strategy, lambda *_: None
            )


def test_a_database_that_knows_no_granularity_is_one_of_subgraphs(tmp_path: Path) -> None:
    create_database(tmp_path, SUBGRAPH)
    meta = json.loads((tmp_path / META_FILE).read_text())
    del meta["key"]["granularity"]
    (tmp_path / META_FILE).write_text(json.dumps(meta))
    assert granularity_of(tmp_path) == "subgraph"
    assert len(open_database(tmp_path, SUBGRAPH)) == 0
    with pytest.raises(DatabaseMismatchError, match="'operator', but got 'subgraph'"):
        open_database(tmp_path, KEY)


# ---- whole runs ----


def tune_and_apply(net, work_dir: Path, strategy: str, tasks: list, **options):
    """Tune by operator, and apply; return the rows by task, and the applied module."""
    run = TuneOptions(time_budget_s=0.0, threads=THREADS, granularity="operator", **options)
    result = create_strategy(strategy).tune(tasks, TARGET, ARCH, run, work_dir, lambda *_: None)
    assert result.database_dir is not None
    assert granularity_of(result.database_dir) == "operator"
    assert [row.name for row in result.tasks] == [task.name for task in tasks]
    for task, row in zip(tasks, result.tasks, strict=True):
        assert row.granularity == task.granularity
        assert task.is_measurable or row.trials == 0
    applied = apply_database(net, result.database_dir, KEY, TARGET, losers=True)
    path = work_dir / "net.so"
    library = build_library(net, SPEC, path, database_dir=result.database_dir)
    assert_right(path)
    assert set(library.records) == set(library.sources)
    by_record = {name for name, record in library.records.items() if record == "operator"}
    assert by_record == {name for name, kind in library.sources.items() if kind == "database"}
    return dict(zip([task.name for task in tasks], result.tasks, strict=True)), applied


def test_one_operator_that_was_measured_serves_two_functions(net, tmp_path: Path) -> None:
    tasks = [t for t in extract_tasks(net, TARGET, "operator") if t.weight == 2 or t.left_out]
    assert len(tasks) == 2
    rows, applied = tune_and_apply(net, tmp_path, "fast", tasks, trials=0, topk=2)
    assert sorted(row.trials for row in rows.values()) == [0, 2]
    assert {name.rstrip("12") for name in applied.served} == {
        "fused_conv2d1_add_relu", "fused_conv2d1_tir_clip",
    }  # fmt: skip
    assert set(applied.missing.values()) == {NO_ANCHOR, "no record of its operator"}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fast", "metaschedule"])
def test_what_a_strategy_measured_is_applied(net, tmp_path: Path, strategy: str) -> None:
    tasks = list(extract_tasks(net, TARGET, "operator"))
    rows, applied = tune_and_apply(net, tmp_path, strategy, tasks, trials=24, topk=2)
    measured = {name for name, row in rows.items() if row.trials > row.failures}
    assert len(measured) >= 2
    if strategy == "fast":
        assert applied.served == set(anchored(net))
    operators_of = {
        name: workload_hash(alone(operator_function(func))) for name, func in anchored(net).items()
    }
    for task in operators(net):
        key = workload_hash(task.mod)
        mine = {name for name, other in operators_of.items() if other == key}
        assert len(mine) == task.weight
        assert (mine <= applied.served) == (task.name in measured)
