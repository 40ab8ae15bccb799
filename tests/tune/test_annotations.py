"""Validation of tuning records: they may transform loops, not inject code."""

from __future__ import annotations

import json

import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T  # noqa: N812

from tests.kernels.cpu.harness import matmul
from tvmopt.device.target import resolve_target
from tvmopt.errors import DatabaseMismatchError
from tvmopt.kernels.cpu.passes.prefetch import PREFETCH, PREFETCH_EPILOGUE
from tvmopt.kernels.cuda.common.register_promotion import OWN
from tvmopt.kernels.emit import emit
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.tune.annotations import refusal
from tvmopt.tune.database import (
    RECORD_FILE,
    DatabaseKey,
    canonical_target,
    create_database,
    open_database,
)

TARGET = resolve_target("host", 1).to_tvm()
KEY = DatabaseKey(canonical_target(TARGET), 1)
FOREIGN = 'define void @run() { call void asm "ud2", ""() ret void }'


@T.prim_func(s_tir=True)
def double(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
    for i in T.serial(64):
        with T.sblock("b"):
            v = T.axis.spatial(64, i)
            b[v] = a[v] * T.float32(2)


def _database(folder, key, value):
    module = tvm.IRModule({"main": double.with_attr("global_symbol", "main")})
    schedule = tvm.s_tir.Schedule(module)
    [loop] = schedule.get_loops(schedule.get_sblock("b"))
    schedule.annotate(loop, key, value)
    database = create_database(folder, KEY)
    workload = database.commit_workload(module)
    database.commit_tuning_record(ms.database.TuningRecord(schedule.trace, workload, [1.0], TARGET))


@pytest.mark.parametrize(
    "key",
    ["pragma_import_llvm", "pragma_import_c", "pragma_anything", "meta_schedule.pragma_import_c"],
)
def test_foreign_code_is_refused(tmp_path, key):
    _database(tmp_path, key, FOREIGN)
    with pytest.raises(DatabaseMismatchError, match=rf"1 of 1 .*line 1: it annotates '{key}'"):
        open_database(tmp_path, KEY)


@pytest.mark.parametrize(
    "key", ["meta_schedule.parallel", "pragma_auto_unroll_max_step", PREFETCH, PREFETCH_EPILOGUE]
)
def test_what_we_write_is_read(tmp_path, key):
    _database(tmp_path, key, 1)
    assert len(open_database(tmp_path, KEY).get_all_tuning_records()) == 1


@pytest.mark.parametrize(
    "record", [None, 7, [], [0, [[]]], [0, [[[["Annotate", [], [], []]], []]]], [0, [[[[1]], []]]]]
)
def test_what_cannot_be_read_is_refused(record):
    assert refusal(record) == "its steps cannot be read"


def test_unknown_steps_are_refused(tmp_path):
    _database(tmp_path, "meta_schedule.parallel", 1)
    path = tmp_path / RECORD_FILE
    record = json.loads(path.read_text())
    record[1][0][0].append(["CallPacked", [], ["os.system"], []])
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(DatabaseMismatchError, match="it holds the step 'CallPacked'"):
        open_database(tmp_path, KEY)


def _with_layout(folder, pad_value=None, width=5):
    """Write a database of one record that splits the output into rows of ``width``."""
    module = tvm.IRModule({"main": double.with_attr("global_symbol", "main")})
    schedule = tvm.s_tir.Schedule(module)
    schedule.cache_write(schedule.get_sblock("b"), 0, "global")
    schedule.transform_layout(
        schedule.get_sblock("b"),
        ("write", 0),
        lambda i: (i // width, i % width),
        pad_value=pad_value,
    )
    database = create_database(folder, KEY)
    workload = database.commit_workload(module)
    database.commit_tuning_record(ms.database.TuningRecord(schedule.trace, workload, [1.0], TARGET))


def _calls_system(*_indices):
    return tvm.tirx.Cast("float32", tvm.tirx.call_extern("int32", "system", "true"))


def test_a_padding_value_that_calls_a_function_is_refused(tmp_path):
    _with_layout(tmp_path, _calls_system)
    with pytest.raises(DatabaseMismatchError, match=r"an index map in it holds 'ir\.Call'"):
        open_database(tmp_path, KEY)


def test_serialised_calls_are_refused_wherever_they_are(tmp_path):
    _with_layout(tmp_path, width=4)
    path = tmp_path / RECORD_FILE
    record = json.loads(path.read_text())
    call = tvm.ir.save_json(_calls_system())
    for place in (record[1][0][0][-1][1], record[1][0][0][-1][2], record[1][0][1]):
        place.append([call])
        path.write_text(json.dumps(record) + "\n")
        with pytest.raises(DatabaseMismatchError, match=r"an index map in it holds 'ir\.Call'"):
            open_database(tmp_path, KEY)
        place.pop()


@pytest.mark.parametrize(("pad_value", "width"), [(None, 4), (0.0, 5)])
def test_layouts_with_index_arithmetic_are_read(tmp_path, pad_value, width):
    _with_layout(tmp_path, pad_value, width)
    assert len(open_database(tmp_path, KEY).get_all_tuning_records()) == 1


@pytest.mark.parametrize(("rows", "depth"), [(12544, 12), (196, 64)], ids=["large", "small"])
@pytest.mark.parametrize("cpu", ["znver3", "skylake-avx512", "sapphirerapids"])
def test_what_cpu_schedules_hold_is_read(rows: int, depth: int, cpu: str, tmp_path) -> None:
    spec = resolve_target(cpu, 2)
    target = spec.to_tvm()
    func = matmul(rows, depth, 96, target)
    made = [emit(func, hint) for hint in DefaultPolicy(func, spec.arch()).emit_config(20)]
    traces = [one.trace for one in made if isinstance(one, Schedule)]
    assert any("prefetch_epilogue" in str(trace) for trace in traces) == (rows > 12000)
    key = DatabaseKey(canonical_target(target), 2)
    database = create_database(tmp_path, key)
    workload = database.commit_workload(tvm.IRModule({"main": func}))
    for trace in traces:
        database.commit_tuning_record(ms.database.TuningRecord(trace, workload, [1.0], target))
    assert len(open_database(tmp_path, key).get_all_tuning_records()) == len(traces)


def test_what_gpu_kernels_annotate_is_allowed() -> None:
    for key in ("tvmopt.halves", OWN):
        annotate = ["Annotate", ["l0", 1], [key], []]
        assert refusal([{}, [[[annotate], []]]]) == ""
