"""The tuning database: a directory that holds schedules and says what they are good for.

``database_workload.json`` and ``database_tuning_record.json`` are MetaSchedule's own JSONDatabase.
TVM looks a schedule up by the function alone: a record tuned for another CPU or another number of
threads would be applied without a word. ``meta.json`` holds what the records were measured under,
and opening a database compares it; that comparison is the only guard.

``meta.json`` also holds, for each workload that was compared, the latency of the best record and
of the schedule that it would replace. A record that lost is kept, since a later search can start
from it, but it is not applied.
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

from tvmopt.config import GRANULARITIES
from tvmopt.errors import DatabaseMismatchError, TuneError, in_one_line
from tvmopt.kernels.cpu.intrinsics.choose import register_used
from tvmopt.tune.annotations import refusal

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"
META_FILE = "meta.json"
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class DatabaseKey:
    """What a tuning database is good for; two that differ must never share records.

    Attributes:
        target: Canonical JSON of the target; see :func:`canonical_target`.
        threads: Threads the candidates were measured with.
        tvm_version: Version of TVM that wrote the traces.
        granularity: What one record schedules: ``"subgraph"``, a fused function; ``"operator"``,
            its anchor operator alone, so that the schedule must be transferred.
    """

    target: str
    threads: int
    tvm_version: str = tvm.__version__
    granularity: str = "subgraph"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Measured latencies of one workload, in microseconds; None when not measured.

    Attributes:
        rule: What the default schedule was.
        default_us: Latency under the default schedule.
        tuned_us: Latency under the best record.
        config: The best record's hint, when it came from one; see ``Hint.to_dict``.
        others: The next fastest hints, for a function that does not take the best of its operator.
    """

    rule: str
    default_us: float | None
    tuned_us: float | None
    config: dict[str, Any] | None = None
    others: tuple[dict[str, Any], ...] = ()

    @property
    def record_wins(self) -> bool:
        """Whether the record is to be applied: it is no slower, or nothing says that it is.

        The record may be the policy's first choice itself, measured to be the fastest.
        """
        if self.default_us is None or self.tuned_us is None:
            return True
        return self.tuned_us <= self.default_us


def canonical_target(target: Target) -> str:
    """JSON of ``target`` with sorted keys: equal text if and only if equal targets."""
    return json.dumps(json.loads(str(target)), sort_keys=True, separators=(",", ":"))


def create_database(directory: Path, key: DatabaseKey) -> Any:
    """Create a database, or open the one that is already there.

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
    """Open a database that was written under the same key, for reading and appending.

    A last line that is cut short, as a kill leaves it, is dropped.

    Returns:
        A ``tvm.s_tir.meta_schedule.database.JSONDatabase``.

    Raises:
        DatabaseMismatchError: When ``meta.json`` is missing or a field of the key differs, or a
            record holds what tvmopt never writes.
        TuneError: When a line other than the last one is damaged, or a record cannot be replayed.
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
    """Content of ``meta.json``.

    Raises:
        DatabaseMismatchError: When it is missing or unreadable, so nobody knows what the records
            are good for.
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
    meta["key"].setdefault("granularity", "subgraph")  # older ones know no other
    if meta["key"]["granularity"] not in GRANULARITIES:
        raise DatabaseMismatchError(
            f"granularity in {path} must be one of {', '.join(GRANULARITIES)}, but got "
            f"{str(meta['key']['granularity'])[:60]!r}, {unknown}"
        )
    return meta


def granularity_of(directory: Path) -> str:
    """What one record of a database schedules: ``"subgraph"`` or ``"operator"``.

    Raises:
        DatabaseMismatchError: As :func:`read_meta`.
    """
    return str(read_meta(directory)["key"]["granularity"])


def read_comparisons(directory: Path) -> dict[str, Comparison]:
    """The measured comparisons, by :func:`workload_hash`.

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
    """Structural hash of a task's module, as text; the same in every process."""
    from tvm.s_tir.meta_schedule.utils import shash2hex

    return shash2hex(mod)


def repair_database(directory: Path) -> int:
    """Drop a last line that was cut short by a kill; returns how many lines were dropped.

    Raises:
        TuneError: When another line is damaged, which no kill explains.
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
    except Exception as error:
        raise TuneError(
            f"every record of {directory} must replay on its workload, but TVM refused one: "
            f"{in_one_line(error)}; restore the files, or tune again into a new database"
        ) from error


def _write_meta(directory: Path, meta: dict[str, Any]) -> None:
    _replace_file(directory / META_FILE, json.dumps(meta, indent=2, sort_keys=True) + "\n")


def _replace_file(path: Path, text: str) -> None:
    # A rename is atomic, so a kill leaves the old file or the new one, never a part.
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # a rename before its contents would survive a power cut empty
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
    """Drop a damaged last line; returns (lines kept, lines dropped)."""
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
    # TVM appends its next record right after the last byte, so the last line must end.
    whole = "".join(line + "\n" for line in kept)
    if whole != text:
        _replace_file(path, whole)
    return len(kept), len(lines) - len(kept)


def _parses(line: str, valid: Any) -> bool:
    if "\ufffd" in line:  # stands for bytes that are no UTF-8
        return False
    try:
        return bool(valid(json.loads(line)))
    except (ValueError, RecursionError):
        return False
