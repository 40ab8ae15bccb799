"""Strategy ``metaschedule``: TVM's evolutionary search, measured on this machine or on a board.

The tuning loop is ours; search space, search and database are TVM's. Our loop keeps a time budget,
compares with the default schedule, checks the output of every candidate, and logs each one:

1. copy the records of an earlier database (warm start),
2. measure the default schedule of every task,
3. measure batches of candidates for the tasks with the largest expected gain,
4. time the best record and the default schedule again in interleaved runs, and keep the faster one.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tvm import tirx
from tvm.target import Target

from tvmopt import host
from tvmopt.device.arch import Arch
from tvmopt.errors import TVM_ERRORS
from tvmopt.measure.devices import device_of
from tvmopt.measure.host_cpu import check_cpu_target
from tvmopt.measure.measurer import Candidates, Measured, Measurer
from tvmopt.tune.base import Progress, TuneOptions, TuneResult, TuneStrategy
from tvmopt.tune.budget import Deadline, Roofline, SearchEffort, plan_effort
from tvmopt.tune.cost_model import RankingModel, make_cost_model
from tvmopt.tune.database import (
    commit_record,
    read_comparisons,
    workload_hash,
    write_comparisons,
)
from tvmopt.tune.default import schedule_task
from tvmopt.tune.history import SearchLog, TaskState, observed_roofline
from tvmopt.tune.interrupt import interrupt_deferred
from tvmopt.tune.space import make_context
from tvmopt.tune.tasks import Task, network_bytes
from tvmopt.tune.warm_start import begin_database, with_stored_names

# Share of the time budget available for measuring default schedules.
_DEFAULTS_SHARE = 0.3
_MOST_TRIALS_OF_A_TASK = 1_000_000


class MetaScheduleStrategy(TuneStrategy):
    """TVM's evolutionary search with a learned cost model of our own."""

    name = "metaschedule"

    def tune(
        self,
        tasks: Sequence[Task],
        target: Target,
        arch: Arch,
        options: TuneOptions,
        work_dir: Path,
        progress: Progress,
    ) -> TuneResult:
        """Search until the trials or the time are spent.

        The database is ``work_dir/database``. After an interrupt it holds every record measured so
        far.

        Raises:
            ConfigError: When the options or the target are not supported.
            DatabaseMismatchError: When the warm-start database has another key.
            EnvironmentSetupError: When a package or the C++ compiler is missing.
        """
        options.check(self.name)
        check_cpu_target(target, self.name)  # the schedule rules are for CPUs
        start = time.perf_counter()
        work_dir = work_dir.resolve()
        work_dir.mkdir(parents=True, exist_ok=True)
        directory = work_dir / "database"
        key = options.key(target)
        database = begin_database(directory, key, options.warm_start, options.earlier)
        tasks = with_stored_names(tasks, database)
        states = _initial_states(tasks, arch, database, directory)
        with (
            tempfile.TemporaryDirectory(prefix="candidates-", dir=work_dir) as scratch,
            _file_logger(work_dir / "search.log") as logger,
            Measurer(device_of(arch, options.board), Path(scratch), options.seed) as measurer,
        ):
            search = _Search(states, database, measurer, target, arch, options, logger, progress)
            try:
                search.run()
            finally:
                measured = {s.key: s.comparison() for s in states if s.best_us is not None}
                write_comparisons(directory, read_comparisons(directory) | measured)
        return TuneResult(
            strategy=self.name,
            database_dir=directory,
            tasks=tuple(state.result() for state in states),
            trials=sum(state.trials for state in states),
            seconds=time.perf_counter() - start,
            log=tuple(search.log.records),
        )


class _Search:
    """One search: its collaborators, and the loop over batches."""

    def __init__(
        self,
        states: list[TaskState],
        database: Any,
        measurer: Measurer,
        target: Target,
        arch: Arch,
        options: TuneOptions,
        logger: logging.Logger,
        progress: Progress,
    ) -> None:
        self.log = SearchLog(states)
        self._states = states
        self._database = database
        self._cost_model = make_cost_model(RankingModel(options.seed))
        self._measurer = measurer
        self._target = target
        self._arch = arch
        self._options = options
        self._logger = logger
        self._progress = progress
        self._weight_bytes = options.network_bytes or network_bytes(s.task for s in states)
        self._deadline = Deadline(options.time_budget_s)
        self._effort: SearchEffort = plan_effort(options.trials, options.time_budget_s, len(states))
        self._contexts: dict[str, Any] = {}

    def run(self) -> None:
        """Search until the trials or the time are spent."""
        if self._options.trials == 0:
            return
        self._measure_defaults()
        left = self._options.trials
        while left > 0 and not self._deadline.expired:
            open_states = [state for state in self._states if state.closed is None]
            if not open_states:
                break
            roofline = observed_roofline(self._states)
            left -= self._measure_batch(max(open_states, key=lambda s: s.priority(roofline)), left)
        self._confirm()

    def _measure_defaults(self) -> None:
        """Measure default schedules within their share of the time, highest priority first."""
        waiting = [s for s in self._states if s.closed is None and s.default_us is None]
        for state in sorted(waiting, key=lambda s: -s.priority(Roofline())):
            if self._deadline.used(_DEFAULTS_SHARE):
                return
            scheduled, _ = schedule_task(state.task, self._arch)
            measured = self._measure(state, [scheduled["main"]])
            if not measured:
                return
            [default] = measured
            state.default, state.default_us = default, default.latency_us
            self.log.add(state, 0, default)
            outcome = default.error or _us(default.latency_us)
            self._report(f"{state.task.name}: {outcome} by default ({state.rule})")

    def _measure(
        self, state: TaskState, candidates: Sequence[tirx.PrimFunc], again: Sequence[Measured] = ()
    ) -> list[Measured]:
        """Measure scheduled functions, and earlier results again; empty when the time is spent."""
        group = Candidates(
            state.task.mod["main"],
            candidates,
            [m for m in again if m.built is not None],
            weight_bytes=self._weight_bytes,
            isolated=True,
        )
        [measured] = self._measurer.measure([group], lambda: self._deadline.expired)
        return measured

    def _measure_batch(self, state: TaskState, left: int) -> int:
        """Measure one batch of a task; return the number of trials used."""
        candidates = self._candidates(state)[:left]
        if not candidates:
            return 0
        # The default schedule is timed again, since its library has the reference.
        known = [state.default] if state.default is not None else []
        scheduled = [candidate.sch.mod["main"] for candidate in candidates]
        measured = self._measure(state, scheduled, known)
        measured = measured[len(measured) - len(candidates) :]
        if not measured:
            return 0
        best_before_us = state.tuned_us
        for candidate, result in zip(candidates, measured, strict=True):
            if result.latency_us is not None:
                self._commit(state, candidate, result.latency_us)
            state.add(result)
            self.log.add(state, state.trials, result)
        state.end_batch(best_before_us)
        self._learn(state, candidates, measured)
        failed = sum(result.latency_us is None for result in measured)
        self._report(
            f"{state.task.name}: best {_us(state.tuned_us)}, default {_us(state.default_us)}"
            + (f", {failed} of {len(measured)} failed" if failed else "")
        )
        return len(measured)

    def _candidates(self, state: TaskState) -> list[Any]:
        """Return the next candidates of a task; close the task when the search has none left."""
        try:
            with interrupt_deferred():
                found = self._context(state).generate_measure_candidates()
        except TVM_ERRORS as error:  # its rules do not apply to every function
            lines = str(error).strip().splitlines() or [type(error).__name__]
            state.closed = f"the search failed: {lines[-1]}"
            self._logger.warning("%s: %s", state.task.name, state.closed)
            return []
        if not found:
            state.closed = "the search has no more candidates"
        return list(found or [])

    def _context(self, state: TaskState) -> Any:
        if state.task.name not in self._contexts:
            context = make_context(
                state.task,
                self._target,
                self._effort,
                seed=(self._options.seed * 9973 + len(self._contexts)) % (2**30) + 1,
                threads=host.usable_cores(),
                logger=self._logger,
            )
            context.pre_tuning(
                _MOST_TRIALS_OF_A_TASK,
                self._effort.batch,
                context.generate_design_space(),
                self._database,
                self._cost_model,
            )
            self._contexts[state.task.name] = context
        return self._contexts[state.task.name]

    def _commit(self, state: TaskState, candidate: Any, latency_us: float) -> None:
        commit_record(
            self._database,
            state.task.mod,
            candidate.sch.trace,
            latency_us,
            self._target,
            candidate.args_info,
        )

    def _learn(self, state: TaskState, candidates: list[Any], measured: list[Measured]) -> None:
        """Update the cost model and the search with the results of a batch."""
        from tvm.s_tir import meta_schedule as ms

        results = [
            ms.runner.RunnerResult([m.latency_us * 1e-6], None)
            if m.latency_us is not None
            else ms.runner.RunnerResult(None, m.error)
            for m in measured
        ]
        context = self._contexts[state.task.name]
        with interrupt_deferred():
            self._cost_model.update(context, candidates, results)
            context.notify_runner_results(candidates, results)

    def _confirm(self) -> None:
        """Time the best candidate and the default schedule of each task again, interleaved.

        The minimum of many noisy timings is biased, and the machine load may differ between the
        first measurements of the two.
        """
        for state in self._states:
            tuned, default = state.tuned, state.default
            if tuned is None or default is None or default.built is None:
                continue
            confirmed = [m.latency_us for m in self._measure(state, [], [tuned, default])]
            if confirmed and None not in confirmed:
                state.tuned_us, state.default_us = confirmed

    def _report(self, text: str) -> None:
        self._progress(sum(s.trials for s in self._states), self._options.trials, text)


def _initial_states(
    tasks: Sequence[Task], arch: Arch, database: Any, directory: Path
) -> list[TaskState]:
    """Return the initial state of every task, with its records from the database."""
    counts: dict[str, int] = {}
    best_us: dict[str, float] = {}
    for record in database.get_all_tuning_records():
        name = workload_hash(record.workload.mod)
        seconds = [float(s) for s in record.run_secs or []]
        if seconds:
            latency_us = 1e6 * sum(seconds) / len(seconds)
            counts[name] = counts.get(name, 0) + 1
            best_us[name] = min(latency_us, best_us.get(name, latency_us))
    compared = read_comparisons(directory)
    states = []
    for task in tasks:
        name = task.workload
        _, rule = schedule_task(task, arch)
        state = TaskState(task=task, rule=rule, key=name, tuned_us=best_us.get(name))
        known = compared.get(name)
        if known is not None:
            state.tuned_us = known.tuned_us if known.tuned_us is not None else state.tuned_us
            state.default_us = known.default_us if known.rule == rule else None
        # Tasks with many records start with a lower priority.
        state.rounds = counts.get(name, 0) // 4
        if not task.is_measurable:
            state.closed = task.left_out or "an extent is symbolic"
        states.append(state)
    return states


@contextlib.contextmanager
def _file_logger(path: Path) -> Iterator[logging.Logger]:
    """Create a logger that writes only to ``path``."""
    logger = logging.Logger("tvmopt.tune.metaschedule", logging.INFO)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        handler.close()


def _us(latency_us: float | None) -> str:
    return "not measured" if latency_us is None else f"{latency_us:.4g} us"
