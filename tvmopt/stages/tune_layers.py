"""Tune at subgraph granularity where layers have alternative implementations.

1. measure the functions of every implementation, and the layout conversions between them,
2. choose the plan with the lowest sum of latencies (:mod:`tvmopt.tune.alternatives`),
3. lower the network under that plan and measure its new functions, where layouts change,
4. compile this plan, the best plans with a single layout and the plan of the cost model, time them,
   and keep the fastest; where the time is spent before, keep the plan with the lowest sum.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from tvmopt.device.target import TargetSpec
from tvmopt.spreadsheet import write_csv
from tvmopt.stages.network_timing import measured_seconds
from tvmopt.stages.result import Progress
from tvmopt.transform.lower import lower, winograd_rule
from tvmopt.transform.plan import Implementation, implementations
from tvmopt.tune.alternatives import MODELLED, Alternatives, Contender, find_alternatives
from tvmopt.tune.base import TaskResult, TuneOptions, TuneResult, TuneStrategy
from tvmopt.tune.budget import Deadline
from tvmopt.tune.tasks import Task, extract_tasks

# Share of trials for the alternatives; the rest is for what the chosen plan adds.
_FIRST_TRIALS = 0.8
# Shares of time for the alternatives, and for what the plans add; the rest is for whole networks.
_FIRST_TIME, _REST_TIME = 0.65, 0.15
# Seconds to build and measure the candidates of one implementation of a layer. 49 functions in a
# single layout take 55 to 75 s on 2 cores of a Zen 4, and of all layouts none was complete in 74 s:
# benchmarks/results/2026-11-30-zen4-4.md.
_S_AN_IMPLEMENTATION = 1.5
# A plan with a single layout is timed, too, if its predicted latency is at most this many times
# that of the best plan.
_NEAR = 1.1


@dataclasses.dataclass(frozen=True)
class LayerTuning:
    """Result of tuning a network's layers.

    Attributes:
        result: Result for the tasks of the chosen plan; its log has all measured candidates.
        plan: The chosen plan; empty when every layer stays as converted.
        lowered: The module lowered under the plan.
        contenders: All plans with their predicted latencies.
        measured_ms: Median latency of the plans that were compiled and timed, by name.
        chosen: Name of the chosen plan.
        alternatives: The alternative implementations; None when no layer has any.
        latency_us: Measured latency in microseconds by workload hash.
        time_is_short: Whether the layers have alternatives, but the time is too short to measure
            them.
    """

    result: TuneResult
    plan: dict[int, Implementation]
    lowered: tvm.IRModule
    contenders: tuple[Contender, ...] = ()
    measured_ms: dict[str, float] = dataclasses.field(default_factory=dict)
    chosen: str = ""
    alternatives: Alternatives | None = None
    latency_us: dict[str, float] = dataclasses.field(default_factory=dict)
    time_is_short: bool = False


def tune_layers(
    mod: tvm.IRModule,
    target: TargetSpec,
    strategy: TuneStrategy,
    options: TuneOptions,
    work_dir: Path,
    progress: Progress,
) -> LayerTuning:
    """Tune every function of ``mod``, and choose the implementation of each layer.

    Args:
        mod: A converted module.
        target: Target to compile for.
        strategy: A strategy that measures.
        options: Tuning budget and settings.
        work_dir: Directory for the database.
        progress: Called while the strategy works.
    """
    start, deadline = time.perf_counter(), Deadline(options.time_budget_s)
    llvm, arch = target.to_tvm(), target.arch()
    time_is_short = _is_too_short_for_alternatives(options.time_budget_s, mod, llvm)
    alternatives = None if time_is_short else find_alternatives(mod, llvm, arch)
    if alternatives is None:
        lowered = lower(mod, llvm)
        tasks = extract_tasks(lowered, llvm)
        result = strategy.tune(tasks, llvm, arch, options, work_dir, progress)
        return LayerTuning(result, {}, lowered, time_is_short=time_is_short)
    options = dataclasses.replace(options, network_bytes=alternatives.network_bytes)
    first_options, rest = _shares(options)
    first_options = dataclasses.replace(first_options, alternatives=alternatives.task_groups)
    first = strategy.tune(alternatives.tasks, llvm, arch, first_options, work_dir, progress)
    latency_us = _latencies(alternatives.tasks, first)
    contenders = alternatives.contenders(latency_us)
    best = contenders[0]
    timed = [best] + [
        c
        for c in contenders[1:]
        if c.name == MODELLED
        or (c.name != "combined" and c.predicted_us <= _NEAR * best.predicted_us)
    ]
    lowered = {c.name: lower(mod, llvm, plan=c.plan) for c in timed}
    tasks_of = {name: extract_tasks(module, llvm) for name, module in lowered.items()}
    measured: list[tuple[Sequence[Task], TuneResult]] = [(alternatives.tasks, first)]
    seams = _unknown(tasks_of, alternatives.tasks)
    if seams:
        measured.append((seams, strategy.tune(seams, llvm, arch, rest, work_dir, progress)))
        latency_us |= _latencies(*measured[-1])
    measured_ms: dict[str, float] = {}
    chosen = best.name
    can_time = options.board is None and not target.missing_on_host() and not deadline.expired
    if len(timed) > 1 and can_time:
        seconds = measured_seconds(lowered, target, first.database_dir)
        measured_ms = {name: 1e3 * value for name, value in seconds.items()}
        chosen = min(measured_ms, key=lambda name: measured_ms[name])
    kept = next(c for c in timed if c.name == chosen)
    result = _joined(measured, tasks_of[chosen], time.perf_counter() - start)
    return LayerTuning(
        result, kept.plan, lowered[chosen], tuple(contenders), measured_ms, chosen, alternatives,
        latency_us,
    )  # fmt: skip


def _is_too_short_for_alternatives(budget_s: float, mod: tvm.IRModule, target: Target) -> bool:
    """Return whether a time limit is too short to measure the alternatives of all layers.

    A part of them would say little: a layout pays where neighbouring layers have it, too.

    Args:
        budget_s: Seconds; 0 means no limit.
        mod: A converted module.
        target: Target to compile for.
    """
    several = implementations(mod, winograd_rule(mod, target)).values()
    return 0 < budget_s < _S_AN_IMPLEMENTATION * sum(map(len, several))


def _unknown(tasks_of: Mapping[str, Sequence[Task]], known: Sequence[Task]) -> list[Task]:
    """Return the tasks of several modules that are not ``known``, under unique names."""
    hashes = {task.workload for task in known}
    names = {task.name for task in known}
    found: list[Task] = []
    for module, tasks in tasks_of.items():
        for task in tasks:
            if task.workload not in hashes:
                name = task.name if task.name not in names else f"{task.name} in {module}"
                found.append(dataclasses.replace(task, name=name))
                hashes.add(task.workload)
                names.add(name)
    return found


def _shares(options: TuneOptions) -> tuple[TuneOptions, TuneOptions]:
    """Return the options for the alternatives, and those for what the plans add."""
    trials = max(1, round(options.trials * _FIRST_TRIALS)) if options.trials else 0
    budget = options.time_budget_s
    return (
        dataclasses.replace(options, trials=trials, time_budget_s=budget * _FIRST_TIME),
        dataclasses.replace(
            options, trials=options.trials - trials, time_budget_s=budget * _REST_TIME,
            warm_start=None, earlier=(),
        ),
    )  # fmt: skip


def _latencies(tasks: Sequence[Task], result: TuneResult) -> dict[str, float]:
    rows = {row.name: row for row in result.tasks}
    found = {}
    for task in tasks:
        row = rows.get(task.name)
        if row is not None and row.latency_us is not None:
            found[task.workload] = row.latency_us
    return found


def _joined(
    measured: Sequence[tuple[Sequence[Task], TuneResult]], tasks: Sequence[Task], seconds: float
) -> TuneResult:
    """Join several results into one for ``tasks``; its log has all measured candidates."""
    names = {task.workload: task.name for task in tasks}
    rows: dict[str, TaskResult] = {}
    log: list[dict[str, Any]] = []
    spent = 0.0
    for known, result in measured:
        hash_of = {task.name: task.workload for task in known}
        rows |= {hash_of[row.name]: row for row in result.tasks}
        log += _renamed(result.log, hash_of, names, spent)
        spent += result.seconds
    of = [dataclasses.replace(rows[t.workload], name=t.name, weight=t.weight) for t in tasks]
    _add_totals(log, of)
    _, first = measured[0]
    trials = sum(result.trials for _, result in measured)
    return dataclasses.replace(
        first, tasks=tuple(of), trials=trials, seconds=seconds, log=tuple(log)
    )


def _renamed(
    log: Sequence[Mapping[str, Any]],
    hash_of: Mapping[str, str],
    names: Mapping[str, str],
    offset_s: float,
) -> list[dict[str, Any]]:
    return [
        dict(event)
        | {
            "task": names.get(hash_of[event["task"]], event["task"]),
            "elapsed_s": round(event["elapsed_s"] + offset_s, 3),
        }
        for event in log
    ]


def _add_totals(log: list[dict[str, Any]], rows: Sequence[TaskResult]) -> None:
    """Set ``best_total_us`` of each event, once every task of the chosen plan has a latency."""
    weights = {row.name: row.weight for row in rows}
    wanted = {event["task"] for event in log} & set(weights)
    best: dict[str, float] = {}
    for event in log:
        name, us = event["task"], event["latency_us"]
        if us is not None and name in weights:
            best[name] = min(us, best.get(name, us))
        whole = wanted <= set(best)
        event["best_total_us"] = sum(weights[n] * us for n, us in best.items()) if whole else None


def write_alternatives(tuning: LayerTuning, path: Path) -> None:
    """Write the implementations of all layers as CSV: predicted cycles, measured latency."""
    assert tuning.alternatives is not None
    with path.open("w", newline="") as file:
        rows = []
        for one in tuning.alternatives.implementations:
            us = tuning.latency_us.get(one.workload)
            chosen = one.implementation
            measured = "not measured: modelled too dear" if us is None else f"{us:.2f}"
            rows.append(
                [one.layer, one.name, chosen.layout or "as converted", chosen.algorithm,
                 f"{one.cycles:.0f}", measured, tuning.plan.get(one.layer) == chosen]
            )  # fmt: skip
        header = ["layer", "name", "layout", "algorithm", "modelled_cycles", "latency_us", "chosen"]
        write_csv(file, header, rows)


def in_words(tuning: LayerTuning) -> list[str]:
    """Return the predicted and measured latency of each plan, and the choice, as sentences."""
    if tuning.time_is_short:
        return ["layers stay as converted: the time is too short to measure alternatives"]
    if tuning.alternatives is None:
        return []
    if not tuning.latency_us:
        return ["layers stay as converted: the time was spent before any was measured"]
    lines = []
    for contender in tuning.contenders:
        ms = tuning.measured_ms.get(contender.name)
        shown = f", measured {ms:.3f} ms end to end" if ms is not None else ""
        exact = " (no other plan is predicted to take less)" if contender.exact else ""
        lines.append(
            f"layers {contender.name}: kernels and layout changes "
            f"{contender.predicted_us / 1e3:.3f} ms{shown}{exact}"
        )
    kinds = statistics.multimode([str(chosen) for chosen in tuning.plan.values()])
    lines.append(f"chosen: {tuning.chosen}; most layers are {', '.join(kinds)}")
    return lines
