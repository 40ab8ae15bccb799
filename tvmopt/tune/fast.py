"""Strategy ``fast``: rank configurations with a cost model and measure the top-k.

1. copy the records of an earlier database (warm start) and skip their workloads,
2. measure ``topk`` candidates of every other function (:mod:`.fast_search`),
3. write the fastest candidate of each task into the tuning database, with the latency of the
   top-1 candidate, which a build without tuning uses.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm import s_tir, tirx
from tvm.target import Target

from tvmopt.device.arch import Arch
from tvmopt.kernels.cpu.reranker import Reranker
from tvmopt.kernels.emit import emit
from tvmopt.kernels.hint import Hint
from tvmopt.kernels.scheduled import REWRITTEN_ATTR
from tvmopt.measure.devices import device_of
from tvmopt.measure.measurer import Measurer
from tvmopt.tune.base import Progress, TaskResult, TuneOptions, TuneResult, TuneStrategy
from tvmopt.tune.budget import Deadline
from tvmopt.tune.database import (
    Comparison,
    commit_record,
    read_comparisons,
    write_comparisons,
)
from tvmopt.tune.default import default_rule, default_source, untuned
from tvmopt.tune.fast_search import Tuned, TuningWorkload, search
from tvmopt.tune.tasks import Task, network_bytes
from tvmopt.tune.warm_start import begin_database, with_stored_names


class FastStrategy(TuneStrategy):
    """Measure the top-k candidates of the cost model for every function.

    Args:
        database_dir: Directory of the database; ``work_dir/database`` by default.
        builders: Number of worker processes that build; 0 means one per core.
    """

    name = "fast"

    def __init__(self, database_dir: Path | None = None, builders: int = 0) -> None:
        self._database_dir = database_dir
        self._builders = builders

    def tune(
        self,
        tasks: Sequence[Task],
        target: Target,
        arch: Arch,
        options: TuneOptions,
        work_dir: Path,
        progress: Progress,
    ) -> TuneResult:
        """Measure until every task has used its share of candidates or the time is spent.

        The database is ``work_dir/database``. When the process is interrupted or killed, it holds
        all tasks finished so far.

        Raises:
            ConfigError: When the options or the target are not supported.
            DatabaseMismatchError: When the warm-start database has another key.
            EnvironmentSetupError: When a package or the C++ compiler is missing.
        """
        options.check(self.name)
        device = device_of(arch, options.board)
        device.check_target(target, self.name)
        start = time.perf_counter()
        work_dir = work_dir.resolve()
        work_dir.mkdir(parents=True, exist_ok=True)
        directory = self._database_dir or work_dir / "database"
        key = options.key(target)
        database = begin_database(directory, key, options.warm_start, options.earlier)
        reranker = Reranker(options.seed)
        reranker.load(directory)
        tasks = with_stored_names(tasks, database)
        run = _Run(tuple(tasks), target, database, directory, progress)
        deadline = Deadline(options.time_budget_s)
        weights = options.network_bytes or network_bytes(run.tasks)
        with (
            tempfile.TemporaryDirectory(prefix="candidates-", dir=work_dir) as scratch,
            Measurer(device, Path(scratch), options.seed, self._builders) as measurer,
        ):
            try:
                search(
                    run.workloads(),
                    arch,
                    measurer,
                    reranker,
                    options.topk,
                    lambda: deadline.expired,
                    run.finish,
                    weights,
                )
                for names in options.alternatives:
                    if deadline.expired:
                        break
                    run.time_together(names, measurer, weights)
            finally:
                run.write()
                reranker.save(directory)
        rows = tuple(run.row(task, arch) for task in run.tasks)
        return TuneResult(
            strategy=self.name,
            database_dir=directory,
            tasks=rows,
            trials=sum(row.trials for row in rows),
            seconds=time.perf_counter() - start,
            log=tuple(run.log()),
        )


class _Run:
    """State of one tuning run: tasks, results so far, and the database to write."""

    def __init__(
        self,
        tasks: tuple[Task, ...],
        target: Target,
        database: Any,
        directory: Path,
        progress: Progress,
    ) -> None:
        self.tasks = tasks
        self._target = target
        self._database = database
        self._directory = directory
        self._progress = progress
        self._keys = {task.name: task.workload for task in tasks}
        self._compared = read_comparisons(directory)
        self._tuned: dict[str, Tuned] = {}
        self._start = time.monotonic()

    def workloads(self) -> list[TuningWorkload]:
        """Return the tasks without a record."""
        return [
            TuningWorkload(task.name, task.mod["main"], task.weight, task.effort)
            for task in self.tasks
            if task.is_measurable and self._keys[task.name] not in self._compared
        ]

    def finish(self, tuned: Tuned) -> None:
        """Record the result of a finished task."""
        name, best = tuned.workload.name, tuned.best
        self._tuned[name] = tuned
        task = next(task for task in self.tasks if task.name == name)
        if best is not None and best.latency_us is not None:
            self._commit(task, tuned)
            self.write()
        done = len(self._tuned)
        text = f"{name}: " + (
            f"{best.latency_us:.1f} us, best of {len(tuned.measured)} ({best.hint.template})"
            if best is not None
            else f"all {len(tuned.measured)} candidates failed"
        )
        self._progress(done, len(self.tasks), text)

    def _commit(self, task: Task, tuned: Tuned) -> None:
        best, first = tuned.best, tuned.first
        assert best is not None and best.latency_us is not None
        schedule = _schedule(task.mod["main"], best.hint)
        if schedule is not None:
            commit_record(self._database, task.mod, schedule.trace, best.latency_us, self._target)
        self._compared[self._keys[task.name]] = Comparison(
            rule=tuned.ranked[0].hint.template,
            default_us=first.latency_us if first else None,
            tuned_us=best.latency_us,
            config=best.hint.to_dict(),
            others=tuple(m.hint.to_dict() for m in tuned.runners_up),
        )

    def time_together(self, names: Sequence[str], measurer: Measurer, weights: int) -> None:
        """Time the best candidates of several tasks again, interleaved; update their latencies."""
        tuned = [self._tuned[name] for name in names if name in self._tuned]
        bests = [(t, best) for t in tuned if (best := t.best) is not None and best.latency_us]
        if len(bests) < 2:
            return
        found = measurer.time_together([(t.workload.func, best) for t, best in bests], weights)
        for (one, best), latency_us in zip(bests, found, strict=True):
            key = self._keys[one.workload.name]
            known = self._compared.get(key)
            if latency_us is None or known is None or not best.latency_us:
                continue
            default_us = known.default_us
            if default_us is not None:
                same = default_us == known.tuned_us
                default_us = latency_us if same else default_us * latency_us / best.latency_us
            self._compared[key] = dataclasses.replace(
                known, tuned_us=latency_us, default_us=default_us
            )

    def write(self) -> None:
        """Write the comparisons beside the records."""
        write_comparisons(self._directory, read_comparisons(self._directory) | self._compared)

    def row(self, task: Task, arch: Arch) -> TaskResult:
        """Return the row of the per-task table."""
        known = self._compared.get(self._keys[task.name])
        tuned = self._tuned.get(task.name)
        measured = tuned.measured if tuned else []
        failures = sum(m.latency_us is None for m in measured)
        if known is None or known.tuned_us is None:
            rule = default_rule(task, arch)
            row = untuned(task, default_source(rule))
            return TaskResult(**{**vars(row), "trials": len(measured), "failures": failures})
        latency_us = known.tuned_us
        return TaskResult(
            name=task.name,
            shape=task.shape,
            weight=task.weight,
            flops=task.flops,
            source="database" if known.record_wins else f"default:{known.rule}",
            latency_us=latency_us,
            gflops=task.flops / latency_us / 1e3,
            trials=len(measured),
            failures=failures,
            granularity=task.granularity,
        )

    def log(self) -> list[dict[str, Any]]:
        """Return one record per measured candidate, in measuring order."""
        events: list[dict[str, Any]] = []
        for name, tuned in self._tuned.items():
            rank = {ranked.hint: place for place, ranked in enumerate(tuned.ranked)}
            cycles = {ranked.hint: ranked.cycles for ranked in tuned.ranked}
            for trial, (m, at) in enumerate(zip(tuned.measured, tuned.at, strict=True), start=1):
                events.append(
                    {
                        "elapsed_s": round(at - self._start, 3),
                        "task": name,
                        "trial": trial,
                        "latency_us": m.latency_us,
                        "error": m.error,
                        "config_id": m.hint.config_id,
                        "config": str(m.hint),
                        "rank": rank[m.hint],
                        "modelled_cycles": cycles[m.hint],
                        "rounds": m.rounds,
                    }
                )
        events.sort(key=lambda event: event["elapsed_s"])
        self._add_totals(events)
        return events

    def _add_totals(self, events: list[dict[str, Any]]) -> None:
        weights = {task.name: task.weight for task in self.tasks}
        best: dict[str, float] = {}
        wanted = set(self._tuned)
        for event in events:
            name, us = event["task"], event["latency_us"]
            if us is not None:
                best[name] = min(us, best.get(name, us))
            whole = wanted <= set(best)
            event["best_total_us"] = (
                sum(weights[n] * us for n, us in best.items()) if whole else None
            )


def _schedule(func: tirx.PrimFunc, hint: Hint) -> s_tir.Schedule | None:
    """Return the schedule of ``func`` under ``hint``; None when its trace does not replay."""
    made = emit(func, hint)
    if not isinstance(made, s_tir.Schedule) or REWRITTEN_ATTR in made.mod["main"].attrs:
        return None
    return made
