"""Tuning at subgraph granularity where layers have several implementations.

1. measure the functions of every implementation, and the layout changes between them,
2. choose the plan whose measured parts take least (:mod:`tvmopt.tune.alternatives`),
3. lower the network by that plan and measure what is new: the functions at its seams,
4. compile it, the best plan with a single layout and what a model would choose, and time them: the
   fastest is kept.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm

from tvmopt.device.target import TargetSpec
from tvmopt.spreadsheet import write_csv
from tvmopt.stages.network_timing import measured_seconds
from tvmopt.stages.result import Progress
from tvmopt.transform.lower import lower
from tvmopt.transform.plan import Implementation
from tvmopt.tune.alternatives import MODELLED, Alternatives, Contender, find_alternatives
from tvmopt.tune.base import TaskResult, TuneOptions, TuneResult, TuneStrategy
from tvmopt.tune.tasks import Task, extract_tasks

# Share of trials and time for the alternatives; the rest is for what the chosen plan adds.
_FIRST = 0.8
# A plan with a single layout is timed, too, when it is predicted to take no more than this many
# times what the best one does.
_NEAR = 1.1


@dataclasses.dataclass(frozen=True)
class LayerTuning:
    """What tuning came to.

    Attributes:
        result: Of the tasks of the chosen plan; the log is of all.
        plan: The chosen plan; empty when everything stays as converted.
        lowered: The module under it.
        contenders: What was predicted of each plan.
        measured_ms: Median latency of the plans that were compiled and timed, by name.
        chosen: Name of the chosen one.
        alternatives: What was measured; None when no layer has several implementations.
        latency_us: Measured latency by hash of the function.
    """

    result: TuneResult
    plan: dict[int, Implementation]
    lowered: tvm.IRModule
    contenders: tuple[Contender, ...] = ()
    measured_ms: dict[str, float] = dataclasses.field(default_factory=dict)
    chosen: str = ""
    alternatives: Alternatives | None = None
    latency_us: dict[str, float] = dataclasses.field(default_factory=dict)


def tune_layers(
    mod: tvm.IRModule,
    target: TargetSpec,
    strategy: TuneStrategy,
    options: TuneOptions,
    work_dir: Path,
    progress: Progress,
) -> LayerTuning:
    """Tune every function of ``mod`` as it runs, and choose how each layer is computed.

    Args:
        mod: A converted module.
        target: Target that it is compiled for.
        strategy: A strategy that measures.
        options: What it may spend.
        work_dir: Where it writes.
        progress: Called while it works.
    """
    start = time.perf_counter()
    llvm, arch = target.to_tvm(), target.arch()
    alternatives = find_alternatives(mod, llvm, arch)
    if alternatives is None:
        lowered = lower(mod, llvm)
        tasks = extract_tasks(lowered, llvm)
        result = strategy.tune(tasks, llvm, arch, options, work_dir, progress)
        return LayerTuning(result, {}, lowered)
    options = dataclasses.replace(options, network_bytes=alternatives.network_bytes)
    first_options, rest = _shares(options)
    first_options = dataclasses.replace(first_options, rivals=alternatives.rivals)
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
    can_time = options.board is None and not target.missing_on_host()
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


def _unknown(tasks_of: Mapping[str, Sequence[Task]], known: Sequence[Task]) -> list[Task]:
    """The tasks of several modules that are not ``known``, each once, and no name twice."""
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
    """What the alternatives may spend, and what is left for the chosen plan."""
    trials = max(1, round(options.trials * _FIRST)) if options.trials else 0
    budget = options.time_budget_s
    return (
        dataclasses.replace(options, trials=trials, time_budget_s=budget * _FIRST),
        dataclasses.replace(
            options, trials=options.trials - trials, time_budget_s=budget * (1 - _FIRST),
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
    """One result, of ``tasks``; the candidates and the log are of all that was measured."""
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
    """``best_total_us`` of the chosen plan's tasks, once each has a latency."""
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
    """What was chosen, and why, a sentence each."""
    if tuning.alternatives is None:
        return []
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
