"""Warm start: copy the records of an earlier tuning database into the new one.

A database has one workload for all functions of one structure, with the names of the first.
Structures do not depend on names, but the traces of records find blocks by name, and some names
depend on the network around a function (``lv3041_red``). So a task is tuned under the names of the
database, and a record whose names the database does not have is left out.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm import s_tir
from tvm.ir import IRModule

from tvmopt.errors import ConfigError, DatabaseMismatchError
from tvmopt.kernels.cpu.reranker import FILE as RERANKER_FILE
from tvmopt.tune.database import (
    META_FILE,
    RECORD_FILE,
    WORKLOAD_FILE,
    DatabaseKey,
    check_key,
    create_database,
    open_database,
    read_comparisons,
    workload_hash,
    write_comparisons,
)
from tvmopt.tune.tasks import Task


def begin_database(
    directory: Path, key: DatabaseKey, source: Path | None, earlier: Sequence[Path] = ()
) -> Any:
    """Create or open the database in ``directory`` and copy the records of ``source`` into it.

    Args:
        directory: Directory of the database.
        key: Key of the database.
        source: Directory of an earlier database, or None.
        earlier: Directories of further databases; only those with the same key are copied.

    Raises:
        ConfigError: When ``source`` is not a directory.
        DatabaseMismatchError: When the key of ``directory`` or ``source`` differs.
    """
    if source is not None:
        check_source(source, key)
    database = create_database(directory, key)
    if source is not None:
        copy_database(source, database, directory, key)
    for one in earlier:
        try:
            check_key(one, key)
        except DatabaseMismatchError:  # not valid for this target or thread count
            continue
        copy_database(one, database, directory, key)
    return database


def check_source(source: Path, key: DatabaseKey) -> None:
    """Raise unless ``source`` is a database with the given key.

    Raises:
        ConfigError: When ``source`` is not a directory.
        DatabaseMismatchError: When ``source`` has another key.
    """
    if not source.is_dir():
        raise ConfigError(f"warm_start must be a tuning database directory, but got {source}")
    check_key(source, key)


def copy_database(source: Path, database: Any, directory: Path, key: DatabaseKey) -> int:
    """Copy records, comparisons and samples of the re-ranker of ``source`` into an open database.

    Args:
        source: Directory of the earlier database; it is not modified.
        database: The database to copy into.
        directory: Directory of ``database``.
        key: Key that both databases must have.

    Returns:
        Number of copied records. Left out are records that ``database`` already holds, and records
        of a workload that it holds under other names.
    """
    from tvm.s_tir import meta_schedule as ms

    if source.resolve() == directory.resolve():
        return 0
    copied = 0
    known = {_identity(record) for record in database.get_all_tuning_records()}
    with tempfile.TemporaryDirectory(prefix="warm-", dir=directory) as temporary:
        copy = Path(temporary)  # opening repairs a truncated line; leave the source as it is
        for name in (META_FILE, WORKLOAD_FILE, RECORD_FILE):
            if (source / name).exists():
                shutil.copyfile(source / name, copy / name)
        for record in open_database(copy, key).get_all_tuning_records():
            if _identity(record) in known:
                continue
            workload = database.commit_workload(record.workload.mod)
            if _names(workload.mod) != _names(record.workload.mod):
                continue
            database.commit_tuning_record(
                ms.database.TuningRecord(
                    record.trace, workload, record.run_secs, record.target, record.args_info
                )
            )
            copied += 1
        write_comparisons(directory, read_comparisons(copy) | read_comparisons(directory))
    if (source / RERANKER_FILE).exists() and not (directory / RERANKER_FILE).exists():
        shutil.copyfile(source / RERANKER_FILE, directory / RERANKER_FILE)
    return copied


def with_stored_names(tasks: Sequence[Task], database: Any) -> list[Task]:
    """Return the tasks, each with the module of the database that has its structure, if one has."""
    return [
        dataclasses.replace(task, mod=database.commit_workload(task.mod).mod)
        if database.has_workload(task.mod)
        else task
        for task in tasks
    ]


def _names(mod: IRModule) -> list[tuple[str, ...]]:
    """Return the names of blocks and of the buffers that they access, in order."""
    found: list[tuple[str, ...]] = []

    def visit(block: s_tir.SBlock) -> None:
        regions = [*block.reads, *block.writes]
        found.append((block.name_hint, *(region.source.name for region in regions)))

    tvm_ffi.structural_walk(mod["main"].body, (s_tir.SBlock, visit))
    return found


def _identity(record: Any) -> tuple[str, tuple[float, ...]]:
    """Return a key that identifies a record; two measurements never have equal seconds."""
    seconds = tuple(float(s) for s in record.run_secs or ())
    return workload_hash(record.workload.mod), seconds
