"""Names of blocks depend on the network around a function; records are replayed by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm
from tvm import s_tir, te

from tvmopt.tune import DatabaseKey, canonical_target, create_database, open_database
from tvmopt.tune.database import commit_record
from tvmopt.tune.tasks import Task
from tvmopt.tune.warm_start import copy_database, with_stored_names

from .models import TARGET, THREADS

KEY = DatabaseKey(target=canonical_target(TARGET), threads=THREADS)


def _sum(name: str, rows: int = 8) -> tvm.IRModule:
    """Return a sum over rows whose block is called ``name``."""
    x = te.placeholder((rows, 16), name="x")
    k = te.reduce_axis((0, rows), name="k")
    out = te.compute((16,), lambda i: te.sum(x[k, i], axis=k), name=name)
    return tvm.IRModule({"main": te.create_prim_func([x, out])})


def _add_record(database, mod: tvm.IRModule, name: str, microseconds: float) -> None:
    schedule = s_tir.Schedule(mod)
    schedule.vectorize(schedule.get_loops(schedule.get_sblock(name))[0])
    commit_record(database, mod, schedule.trace, microseconds, TARGET)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Write a database with one record, of the block ``lv1_red``."""
    _add_record(create_database(tmp_path / "first", KEY), _sum("lv1_red"), "lv1_red", 1.0)
    return tmp_path / "first"


def test_a_task_is_tuned_under_the_names_of_the_database(directory: Path) -> None:
    database = open_database(directory, KEY)
    known, new = _sum("lv2_red"), _sum("lv2_red", rows=4)
    tasks = [Task(f"sum{n}", mod, 1, 0.0, "", ()) for n, mod in enumerate((known, new))]
    found = with_stored_names(tasks, database)
    assert s_tir.Schedule(found[0].mod).get_sblock("lv1_red")
    assert found[0].workload == tasks[0].workload
    assert found[1].mod.same_as(new) and not database.has_workload(new)
    _add_record(database, found[0].mod, "lv1_red", 0.5)
    assert len(open_database(directory, KEY).get_all_tuning_records()) == 2


def test_records_of_other_names_are_not_copied(directory: Path, tmp_path: Path) -> None:
    """They would not replay, and no record of the database could be read."""
    other = create_database(tmp_path / "other", KEY)
    for name, rows in (("lv2_red", 8), ("lv3_red", 4)):
        _add_record(other, _sum(name, rows), name, 2.0)
    database = open_database(directory, KEY)
    assert copy_database(tmp_path / "other", database, directory, KEY) == 1
    records = open_database(directory, KEY).get_all_tuning_records()
    assert sorted(float(record.run_secs[0]) for record in records) == [1e-6, 2e-6]
