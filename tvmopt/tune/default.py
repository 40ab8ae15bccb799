"""Strategy ``default``: no search; every function gets its default schedule."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tvm.ir import IRModule
from tvm.target import Target

from tvmopt.device.arch import Arch
from tvmopt.tune.base import (
    Progress,
    TaskResult,
    TuneOptions,
    TuneResult,
    TuneStrategy,
    without_trials,
)
from tvmopt.tune.tasks import Task


class DefaultStrategy(TuneStrategy):
    """Strategy without measurement and database; it only lists the tasks."""

    name = "default"

    def tune(
        self,
        tasks: Sequence[Task],
        target: Target,
        arch: Arch,
        options: TuneOptions,
        work_dir: Path,
        progress: Progress,
    ) -> TuneResult:
        """Return the default schedule's rule for every task."""
        start = time.perf_counter()
        rows = []
        for done, task in enumerate(tasks, start=1):
            source = options.sources.get(task.name) or default_source(default_rule(task, arch))
            rows.append(untuned(task, source))
            progress(done, len(tasks), task.name)
        return without_trials(self.name, rows, start)


def schedule_task(task: Task, arch: Arch) -> tuple[IRModule, str]:
    """Return a task's module under its default schedule, and the name of the rule that made it."""
    from tvmopt.kernels.first_choice import schedule_function

    scheduled = schedule_function(task.mod["main"], arch)
    return IRModule({"main": scheduled.func}), str(scheduled.rule)


def default_rule(task: Task, arch: Arch) -> str:
    """Return the name of the rule that schedules a task without a tuning record."""
    return schedule_task(task, arch)[1]


def default_source(rule: str) -> str:
    """Return the ``source`` entry of a default schedule; ``unscheduled`` rules count as none."""
    return f"none:{rule}" if rule.startswith("unscheduled") else f"default:{rule}"


def untuned(task: Task, source: str) -> TaskResult:
    """Return the table row of a task that was not measured."""
    return TaskResult(
        name=task.name,
        shape=task.shape,
        weight=task.weight,
        flops=task.flops,
        source=source,
        latency_us=None,
        gflops=None,
        trials=0,
        failures=0,
        granularity=task.granularity,
    )
