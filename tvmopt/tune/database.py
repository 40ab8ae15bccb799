"""The tuning database: a directory with tuning records and the key that they are valid for.

``database_workload.json`` and ``database_tuning_record.json`` form a MetaSchedule JSONDatabase.
TVM looks records up by workload alone: it silently applies a record tuned for another CPU or
another thread count. ``meta.json`` therefore stores the key of the records. Opening a database
compares the key; no other check exists.

``meta.json`` also stores, for each compared workload, the latencies of the best record and of the
default schedule. A record that is slower than the default schedule is kept as a starting point for
later searches, but is not applied.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import tvm
from tvm.ir import IRModule
from tvm.target import Target

from tvmopt.choices import GRANULARITIES
from tvmopt.errors import DatabaseMismatchError, TuneError, in_one_line
from tvmopt.kernels.cpu.intrinsics.choose import register_used
from tvmopt.tune.annotations import refusal

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"
META_FILE = "meta.json"
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class DatabaseKey:
    """Conditions under which tuning records are valid; records are never shared between two keys.

    Attributes:
        target: Canonical JSON of the target; see :func:`canonical_target`.
        threads: Number of threads that candidates were measured with.
        tvm_version: TVM version that wrote the traces.
        granularity: What a record schedules: ``"subgraph"``, a fused function; ``"operator"``,
            its anchor operator alone, which requires schedule transfer.
    """

    target: str
    threads: int
    tvm_version: str = tvm.__version__
    granularity: str = "subgraph"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Measured latencies of one workload in microseconds; None when not measured.

    Attributes:
        rule: Name of the default schedule's rule.
        default_us: Latency of the default schedule.
        tuned_us: Latency of the best record.
        config: The best record's hint as a dictionary, see ``Hint.to_dict``; None for a trace.
        others: The next fastest hints. Schedule transfer uses them for functions to which the
            best hint does not apply.
    """

    rule: str
    default_us: float | None
    tuned_us: float | None
    config: dict[str, Any] | None = None
    others: tuple[dict[str, Any], ...] = ()

    @property
    def record_wins(self) -> bool:
        """Whether the record is applied: it is not slower than the default, or one is not measured.

        The record may be the top-1 candidate itself, when that one measures fastest.
        """
        if self.default_us is None or self.tuned_us is None:
            return True
        return self.tuned_us <= self.default_us


def canonical_target(target: Target) -> str:
    """Return the JSON of ``target`` with sorted keys; equal text means equal targets."""
    return json.dumps(json.loads(str(target)), sort_keys=True, separators=(",", ":"))


def create_database(directory: Path, key: DatabaseKey) -> Any:
    """Create a database, or open an existing one.

    Raises:
        DatabaseMismatchError: When the directory holds a database with another key.
    """
    meta = directory / META_FILE
    if meta.exists() or (directory / RECORD_FILE).exists():
        return open_database(directory, key)
    directory.mkdir(parents=True, exist_ok=True)
    _write_meta(directory, {"format": _FORMAT, "key": dataclasses.asdict(key), "compared": {}})
    return _json_database(directory)


def open_database(directory: Path, key: DatabaseKey) -> Any:
    """Open a database with the given key for reading and appending.

    A truncated last line, which a killed process leaves, is dropped.

    Returns:
        A ``tvm.s_tir.meta_schedule.database.JSONDatabase``.

    Raises:
        DatabaseMismatchError: When ``meta.json`` is missing, when a field of the key differs, or
            when a record holds instructions that tvmopt never writes.
        TuneError: When a line other than the last one is damaged, or a record does not replay.
    """
    check_key(directory, key)
    repair_database(directory)
    _check_records(directory)
    return _json_database(directory)


def check_key(directory: Path, key: DatabaseKey) -> None:
    """Raise :class:`DatabaseMismatchError` unless the database has exactly this key."""
    stored = read_meta(directory)["key"]
    for field in dataclasses.fields(DatabaseKey):
        theirs, ours = stored.get(field.name), getattr(key, field.name)
        if theirs != ours:
            raise DatabaseMismatchError(
                f"{field.name} of the tuning database {directory} must be {ours!r}, but got "
                f"{theirs!r}; tune again, or pass the database that matches"
            )


def read_meta(directory: Path) -> dict[str, Any]:
    """Return the content of ``meta.json``.

    Raises:
        DatabaseMismatchError: When the file is missing or unreadable, so that the key of the
            records is unknown.
    """
    path = directory / META_FILE
    unknown = "so what it was tuned for is unknown; tune again, or pass a database made by tvmopt"
    if not path.exists():
        raise DatabaseMismatchError(
            f"a tuning database must hold {META_FILE}, but {directory} does not, {unknown}"
        )
    try:
        meta = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DatabaseMismatchError(
            f"{path} must be JSON, but got {in_one_line(error)}, {unknown}"
        ) from error
    if not isinstance(meta, dict) or not isinstance(meta.get("key"), dict):
        raise DatabaseMismatchError(f"{path} must hold an object 'key', but does not, {unknown}")
    meta["key"].setdefault("granularity", "subgraph")  # databases written before the field existed
    if meta["key"]["granularity"] not in GRANULARITIES:
        raise DatabaseMismatchError(
            f"granularity in {path} must be one of {', '.join(GRANULARITIES)}, but got "
            f"{str(meta['key']['granularity'])[:60]!r}, {unknown}"
        )
    return meta


def granularity_of(directory: Path) -> str:
    """Return the granularity of a database's records: ``"subgraph"`` or ``"operator"``.

    Raises:
        DatabaseMismatchError: As :func:`read_meta`.
    """
    return str(read_meta(directory)["key"]["granularity"])


def read_comparisons(directory: Path) -> dict[str, Comparison]:
    """Return the measured comparisons by :func:`workload_hash`.

    Raises:
        DatabaseMismatchError: As :func:`read_meta`, and when a comparison is damaged.
    """
    compared = read_meta(directory).get("compared", {})
    try:
        return {key: _comparison(fields) for key, fields in compared.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise DatabaseMismatchError(
            f"'compared' of {directory / META_FILE} must hold what tvmopt measured, but it is "
            f"damaged ({in_one_line(error, 200)}); tune again into a new database"
        ) from error


def _comparison(fields: dict[str, Any]) -> Comparison:
    found = Comparison(**(fields | {"others": tuple(fields.get("others", ()))}))
    if not isinstance(found.rule, str):
        raise TypeError(f"rule is {found.rule!r}")
    for latency in (found.default_us, found.tuned_us):
        if latency is not None and type(latency) not in (int, float):
            raise TypeError(f"a latency is {latency!r}")
    for config in found.others if found.config is None else (found.config, *found.others):
        if not isinstance(config, dict):
            raise TypeError(f"a configuration is {config!r}")
    return found


def write_comparisons(directory: Path, comparisons: dict[str, Comparison]) -> None:
    """Replace the measured comparisons."""
    meta = read_meta(directory)
    meta["compared"] = {k: dataclasses.asdict(v) for k, v in sorted(comparisons.items())}
    _write_meta(directory, meta)


def workload_hash(mod: IRModule) -> str:
    """Return the structural hash of a task's module as text; it is equal in every process."""
    from tvm.s_tir.meta_schedule.utils import shash2hex

    return shash2hex(mod)


def commit_record(
    database: Any, mod: IRModule, trace: Any, latency_us: float, target: Any, args_info: Any = None
) -> None:
    """Add a record of a module to an open database.

    Args:
        database: As of :func:`open_database`.
        mod: The workload, with one function ``main``.
        trace: Trace of its schedule, which replays on ``mod``.
        latency_us: Its measured latency in microseconds.
        target: The target.
        args_info: Shapes and dtypes of the arguments; by default, of the parameters of ``mod``.
    """
    from tvm.s_tir import meta_schedule as ms

    workload = database.commit_workload(mod)
    info = args_info or ms.arg_info.ArgInfo.from_prim_func(mod["main"])
    record = ms.database.TuningRecord(trace, workload, [latency_us * 1e-6], target, info)
    database.commit_tuning_record(record)


def repair_database(directory: Path) -> int:
    """Drop a truncated last line, as a killed process leaves it; return how many lines it dropped.

    Raises:
        TuneError: When another line is damaged.
    """
    workloads, dropped = _repair_file(directory / WORKLOAD_FILE, _is_workload)
    _, dropped_records = _repair_file(
        directory / RECORD_FILE, lambda row: _is_record(row, workloads)
    )
    return dropped + dropped_records


def _check_records(directory: Path) -> None:
    path = directory / RECORD_FILE
    lines = path.read_text().splitlines() if path.exists() else []
    found = [(n, why) for n, line in enumerate(lines, 1) if (why := refusal(json.loads(line)))]
    if found:
        number, why = found[0]
        raise DatabaseMismatchError(
            f"records of a tuning database must hold only what tvmopt writes, but {len(found)} of "
            f"{len(lines)} in {path} do not (line {number}: {why}); none was replayed; do not use "
            "the database, tune again into a new one"
        )


def _json_database(directory: Path) -> Any:
    from tvm.s_tir import meta_schedule as ms

    records = directory / RECORD_FILE
    if records.exists():
        register_used(records.read_text())
    try:  # loading replays every trace on its workload
        return ms.database.JSONDatabase(work_dir=str(directory), module_equality="structural")
    except MemoryError:
        raise
    except Exception as error:  # a stored record is data: what its replay raises has no limit
        raise TuneError(
            f"every record of {directory} must replay on its workload, but TVM refused one: "
            f"{in_one_line(error)}; restore the files, or tune again into a new database"
        ) from error


def _write_meta(directory: Path, meta: dict[str, Any]) -> None:
    _replace_file(directory / META_FILE, json.dumps(meta, indent=2, sort_keys=True) + "\n")


def _replace_file(path: Path, text: str) -> None:
    # A rename is atomic: a killed process leaves the old file or the new one, never a mixture.
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # otherwise a power failure may leave the renamed file empty
    partial.replace(path)


def _is_workload(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 2 and all(isinstance(item, str) for item in row)


def _is_record(row: Any, workloads: int) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 2
        and isinstance(row[0], int)
        and 0 <= row[0] < workloads
    )


def _repair_file(path: Path, valid: Any) -> tuple[int, int]:
    """Drop a damaged last line; return (lines kept, lines dropped)."""
    if not path.exists():
        return 0, 0
    text = path.read_text(errors="replace")
    lines = text.splitlines()
    kept: list[str] = []
    for number, line in enumerate(lines, start=1):
        if _parses(line, valid):
            kept.append(line)
        elif number < len(lines):
            raise TuneError(
                f"every line of {path} must be one record, but line {number} of {len(lines)} is "
                "damaged; restore the file, or tune again into a new database"
            )
    # TVM appends the next record after the last byte, so the last line needs its newline.
    whole = "".join(line + "\n" for line in kept)
    if whole != text:
        _replace_file(path, whole)
    return len(kept), len(lines) - len(kept)


def _parses(line: str, valid: Any) -> bool:
    if "\ufffd" in line:  # the replacement character: bytes that are not UTF-8
        return False
    try:
        return bool(valid(json.loads(line)))
    except (ValueError, RecursionError):
        return False
