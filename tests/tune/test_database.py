"""Tests of the tuning database: rejected files, repaired files, applied records."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir

from tvmopt.errors import DatabaseMismatchError, TuneError
from tvmopt.tune import (
    DatabaseKey,
    apply_database,
    canonical_target,
    create_database,
    extract_tasks,
    open_database,
)
from tvmopt.tune.database import (
    META_FILE,
    RECORD_FILE,
    WORKLOAD_FILE,
    Comparison,
    commit_record,
    repair_database,
    workload_hash,
    write_comparisons,
)

from .models import (
    TARGET,
    THREADS,
    conv_net,
    conv_net_inputs,
    conv_net_numpy,
    matmul_net,
    run,
)

KEY = DatabaseKey(target=canonical_target(TARGET), threads=THREADS)


def add_record(database, mod: tvm.IRModule, microseconds: float, parallel: bool = True) -> None:
    """Commit a record that parallelises the outermost loop of the last block."""
    schedule = s_tir.Schedule(mod)
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[-1]
    loops = schedule.get_loops(block)
    if parallel:
        schedule.parallel(loops[0])
    schedule.vectorize(schedule.split(loops[-1], [None, 2])[1])
    commit_record(database, mod, schedule.trace, microseconds, TARGET)


@pytest.fixture
def database_dir(tmp_path: Path) -> Path:
    """Write a database with a record of each task of the network except the last two."""
    directory = tmp_path / "database"
    database = create_database(directory, KEY)
    for task in extract_tasks(conv_net(), TARGET)[:-2]:
        add_record(database, task.mod, 10.0)
    return directory


def test_round_trip(database_dir: Path) -> None:
    assert len(open_database(database_dir, KEY)) == 3
    assert len(create_database(database_dir, KEY)) == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target", '{"kind":"llvm","mcpu":"other"}'),
        ("threads", 64),
        ("tvm_version", "0.1"),
        ("granularity", "operator"),
    ],
)
def test_a_different_key_is_refused_by_name(database_dir: Path, field: str, value) -> None:
    other = dataclasses.replace(KEY, **{field: value})
    with pytest.raises(DatabaseMismatchError, match=f"^{field} of the tuning database") as caught:
        open_database(database_dir, other)
    message = str(caught.value)
    assert repr(value) in message
    assert repr(getattr(KEY, field)) in message
    assert "tune again" in message
    with pytest.raises(DatabaseMismatchError):
        create_database(database_dir, other)


def test_missing_meta_is_refused(database_dir: Path) -> None:
    (database_dir / META_FILE).unlink()
    with pytest.raises(DatabaseMismatchError, match=r"must hold meta\.json, but .* does not"):
        open_database(database_dir, KEY)
    with pytest.raises(DatabaseMismatchError, match=r"must hold meta\.json"):
        create_database(database_dir, KEY)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_unreadable_meta_is_refused(database_dir: Path, text: str) -> None:
    (database_dir / META_FILE).write_text(text)
    with pytest.raises(DatabaseMismatchError, match=r"meta\.json must"):
        open_database(database_dir, KEY)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_cut_last_record_is_dropped_and_the_rest_kept(database_dir: Path, cut: int) -> None:
    path = database_dir / RECORD_FILE
    whole = path.read_text()
    path.write_text(whole.rstrip("\n")[:-cut])
    assert len(open_database(database_dir, KEY)) == 2
    assert path.read_text() == "".join(whole.splitlines(keepends=True)[:2])


def test_a_cut_last_workload_is_dropped(database_dir: Path) -> None:
    path = database_dir / WORKLOAD_FILE
    with path.open("a") as file:
        file.write('["123", "cut sho')
    assert len(open_database(database_dir, KEY)) == 3


def test_a_missing_last_newline_is_restored(database_dir: Path) -> None:
    for name in (RECORD_FILE, WORKLOAD_FILE):
        path = database_dir / name
        path.write_text(path.read_text().rstrip("\n"))
    database = open_database(database_dir, KEY)
    add_record(database, extract_tasks(matmul_net(), TARGET)[0].mod, 3.0)
    assert len(open_database(database_dir, KEY)) == 4


def test_a_damaged_line_elsewhere_is_an_error(database_dir: Path) -> None:
    path = database_dir / RECORD_FILE
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0][:30], *lines[1:]]) + "\n")
    with pytest.raises(TuneError, match="line 1 of 3 is damaged"):
        open_database(database_dir, KEY)


def test_an_undamaged_database_is_not_rewritten(database_dir: Path) -> None:
    before = [(p.name, p.stat().st_mtime_ns) for p in sorted(database_dir.iterdir())]
    assert repair_database(database_dir) == 0
    assert [(p.name, p.stat().st_mtime_ns) for p in sorted(database_dir.iterdir())] == before


def test_applied_records_compute_the_same(database_dir: Path) -> None:
    found = apply_database(conv_net(), database_dir, KEY, TARGET)
    applied, served = found.mod, found.served
    heavy = {task.name for task in extract_tasks(conv_net(), TARGET)[:-2]}
    assert served == heavy
    for var, func in conv_net().functions_items():
        name = var.name_hint
        if name in served:
            assert applied[name].attrs["tirx.is_scheduled"]
        else:
            assert tvm_ffi.structural_equal(applied[name], func)
    inputs = conv_net_inputs()
    np.testing.assert_allclose(run(applied, inputs), conv_net_numpy(*inputs), rtol=1e-4)


def test_the_fastest_record_is_applied(tmp_path: Path) -> None:
    [task] = extract_tasks(matmul_net(), TARGET)
    database = create_database(tmp_path, KEY)
    add_record(database, task.mod, 5.0, parallel=True)
    add_record(database, task.mod, 2.0, parallel=False)
    add_record(database, task.mod, 3.0, parallel=True)
    applied = apply_database(matmul_net(), tmp_path, KEY, TARGET)
    assert applied.served == {task.name}
    assert "parallel" not in applied.mod[task.name].script()


def test_a_record_that_lost_to_the_default_is_not_applied(database_dir: Path) -> None:
    heaviest, second = extract_tasks(conv_net(), TARGET)[:2]
    write_comparisons(
        database_dir,
        {
            workload_hash(heaviest.mod): Comparison("matmul", default_us=4.0, tuned_us=10.0),
            workload_hash(second.mod): Comparison("matmul", default_us=40.0, tuned_us=10.0),
        },
    )
    served = apply_database(conv_net(), database_dir, KEY, TARGET).served
    assert heaviest.name not in served
    assert second.name in served


def test_applying_for_another_target_is_refused(database_dir: Path) -> None:
    other = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": THREADS})
    with pytest.raises(DatabaseMismatchError, match="target of the key"):
        apply_database(conv_net(), database_dir, KEY, other)


def test_an_unreplayable_record_names_the_database(database_dir: Path) -> None:
    path = database_dir / RECORD_FILE
    path.write_text(re.sub(r'"\w+", ?"main"', '"no_such_block","main"', path.read_text()))
    with pytest.raises(TuneError, match="must replay on its workload, but TVM refused one"):
        open_database(database_dir, KEY)


def test_canonical_target_ignores_the_order_of_keys() -> None:
    one = tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 4})
    two = tvm.target.Target({"num-cores": 4, "mcpu": "haswell", "kind": "llvm"})
    assert canonical_target(one) == canonical_target(two)
    assert json.loads(canonical_target(one))["mcpu"] == "haswell"
