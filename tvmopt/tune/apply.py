"""Apply a tuning database to a module: schedule every function that has a tuning record."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import IRModule
from tvm.target import Target

from tvmopt.errors import DatabaseMismatchError, TuneError, TvmoptError, last_line
from tvmopt.kernels.backend import backend_of
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.emit import SCHEDULED_ATTR, NotApplicable, hint_from_dict
from tvmopt.tune.database import (
    Comparison,
    DatabaseKey,
    canonical_target,
    check_key,
    open_database,
    read_comparisons,
    workload_hash,
)
from tvmopt.tune.operator import operator_function, why_no_operator
from tvmopt.tune.transfer import transfer_hints, transfer_trace

# Maximum number of operator records that schedule transfer tries on a function, fastest first.
_MOST_TRANSFERS = 8
# Reason why an existing record is not applied.
_LOST = "the default schedule was measured to be faster than its record"


@dataclasses.dataclass(frozen=True)
class Applied:
    """A module with a tuning database applied.

    Attributes:
        mod: The module. Functions scheduled from a record have the attribute
            ``tirx.is_scheduled``.
        served: Names of the functions scheduled from a record.
        missing: For every other function, by name, the reason why no record applies.
        granularity: Granularity of the records.
    """

    mod: IRModule
    served: set[str]
    missing: dict[str, str]
    granularity: str


def apply_database(
    mod: IRModule,
    directory: Path,
    key: DatabaseKey,
    target: Target,
    *,
    losers: bool = False,
) -> Applied:
    """Schedule every function that has a tuning record.

    Before -> after: a function with a record gets the record's schedule and the attribute
    ``tirx.is_scheduled``. Functions without a record, and Relax functions, do not change.
    Records of granularity ``operator`` are transferred to every function with that anchor.

    Args:
        mod: Lowered module, from the same passes as the tuned module.
        directory: The tuning database.
        key: Key that the database must have.
        target: Target to compile for.
        losers: Also apply records that are slower than the default schedule.

    Raises:
        DatabaseMismatchError: When the database has another key.
        TuneError: When the database is damaged.
    """
    if canonical_target(target) != key.target:
        raise DatabaseMismatchError(
            f"target of the key must be {canonical_target(target)!r}, but got {key.target!r}; "
            "open the database with the target that is compiled for"
        )
    compared = read_comparisons(directory)
    try:
        if not backend_of(target).has_traces:
            check_key(directory, key)
            return _apply_configs(mod, compared, losers, key.granularity)
        database = open_database(directory, key)
        if key.granularity == "operator":
            return _apply_operators(mod, database, compared, target, losers)
        return _apply_subgraphs(mod, database, compared, losers, target)
    except (TvmoptError, MemoryError):
        raise
    except Exception as error:  # a stored record is data: what its replay raises has no limit
        raise TuneError(
            f"every record of {directory} must fit the function that it was made for, but one "
            f"does not: {last_line(error)}; tune again into a new database"
        ) from error


def _apply_subgraphs(
    mod: IRModule,
    database: Any,
    compared: dict[str, Comparison],
    losers: bool,
    target: Target,
) -> Applied:
    """Emit the kernels of recorded configurations, and replay the traces of other records."""
    from tvm import relax

    emitted = _apply_configs(mod, compared, losers, "subgraph")
    best = best_records(database, {} if losers else compared)
    before = _scheduled_names(emitted.mod)
    with target, best, tvm.transform.PassContext(opt_level=3):
        applied = relax.transform.MetaScheduleApplyDatabase()(emitted.mod)
    replayed = _scheduled_names(applied) - before
    for var, func in applied.functions_items():
        if var.name_hint in replayed:
            applied[var] = finish(func, func)
    missing = {name: why for name, why in emitted.missing.items() if name not in replayed}
    return Applied(applied, emitted.served | replayed, missing, "subgraph")


def _apply_operators(
    mod: IRModule,
    database: Any,
    compared: dict[str, Comparison],
    target: Target,
    losers: bool,
) -> Applied:
    records: dict[str, list[Any]] = {}
    for record in database.get_all_tuning_records():
        if record.run_secs:
            records.setdefault(workload_hash(record.workload.mod), []).append(record)
    updates, missing = {}, {}
    variables = {var.name_hint: var for var, _ in mod.functions_items()}
    for name, func in _open_functions(mod):
        alone = _alone(func)["main"]
        operator = operator_function(alone)
        if operator is None:
            missing[name] = why_no_operator(alone)
            continue
        key = workload_hash(IRModule({"main": operator}))
        found = sorted(records.get(key, []), key=_seconds)
        known = compared.get(key)
        if not found:
            missing[name] = "no record of its operator"
            continue
        try:
            if known is not None and known.config is not None:
                hints = [hint_from_dict(config) for config in (known.config, *known.others)]
                scheduled = transfer_hints(alone, hints)
            elif known is not None and not known.record_wins and not losers:
                missing[name] = _LOST
                continue
            else:
                scheduled = _transfer_first(alone, found, target)
        except NotApplicable as error:
            missing[name] = f"no schedule of its operator fits: {error}"
            continue
        updates[variables[name]] = scheduled.with_attr("global_symbol", name)
    out = mod.clone()
    out.update(IRModule(updates))
    return Applied(out, {var.name_hint for var in updates}, missing, "operator")


def _apply_configs(
    mod: IRModule, compared: dict[str, Comparison], losers: bool, granularity: str
) -> Applied:
    """Emit the kernel of each recorded configuration again. Generated kernels have no trace.

    The configurations of an operator, fastest first, are tried on every function with that anchor.
    """
    updates, missing = {}, {}
    variables = {var.name_hint: var for var, _ in mod.functions_items()}
    for name, func in _open_functions(mod):
        alone = _alone(func)
        if granularity == "operator":
            operator = operator_function(alone["main"])
            if operator is None:
                missing[name] = why_no_operator(alone["main"])
                continue
            alone = IRModule({"main": operator})
        known = compared.get(workload_hash(alone))
        if known is not None and not known.record_wins and not losers:
            missing[name] = _LOST
        elif known is None or known.config is None:
            missing[name] = "no record of it"
        else:
            others = known.others if granularity == "operator" else ()
            try:
                hints = [hint_from_dict(config) for config in (known.config, *others)]
                kernel = transfer_hints(func, hints)
            except NotApplicable as error:
                missing[name] = f"its record does not fit: {error}"
                continue
            updates[variables[name]] = kernel.with_attr("global_symbol", name)
    out = mod.clone()
    out.update(IRModule(updates))
    return Applied(out, {var.name_hint for var in updates}, missing, granularity)


def _transfer_first(func: tirx.PrimFunc, records: list[Any], target: Target) -> tirx.PrimFunc:
    """Transfer the fastest operator record that applies to ``func``."""
    refused = ""
    for record in records[:_MOST_TRANSFERS]:
        try:
            return transfer_trace(func, record.workload.mod["main"], record.trace, target)
        except NotApplicable as error:
            refused = refused or str(error)
    raise NotApplicable(refused)


def best_records(database: Any, comparisons: dict[str, Comparison]) -> Any:
    """Return an in-memory database with the best record of each workload, where the record wins."""
    from tvm.s_tir import meta_schedule as ms

    best: dict[str, Any] = {}
    for record in database.get_all_tuning_records():
        name = workload_hash(record.workload.mod)
        if record.run_secs and (name not in best or _seconds(record) < _seconds(best[name])):
            best[name] = record
    chosen = ms.database.MemoryDatabase()
    for name, record in best.items():
        if name not in comparisons or comparisons[name].record_wins:
            chosen.commit_workload(record.workload.mod)
            chosen.commit_tuning_record(record)
    return chosen


def _seconds(record: Any) -> float:
    seconds = [float(s) for s in record.run_secs]
    return sum(seconds) / len(seconds)


def _open_functions(mod: IRModule) -> list[tuple[str, tirx.PrimFunc]]:
    """Return names and bodies of the TensorIR functions that are not scheduled yet."""
    return [
        (var.name_hint, func)
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and not _is_scheduled(func)
    ]


def _alone(func: tirx.PrimFunc) -> IRModule:
    """Return ``func`` as ``main`` of its own module, which is how tasks and databases store it."""
    return IRModule({"main": func.with_attr("global_symbol", "main")})


def _is_scheduled(func: tirx.PrimFunc) -> bool:
    return bool(func.attrs and func.attrs.get(SCHEDULED_ATTR, 0))


def _scheduled_names(mod: IRModule) -> set[str]:
    return {
        var.name_hint
        for var, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and _is_scheduled(func)
    }
