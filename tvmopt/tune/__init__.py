"""Tuning strategies: find a schedule for each task and record it in a tuning database.

Every strategy takes the tasks of a lowered Relax module and returns a :class:`TuneResult`.
Strategies that measure also write a tuning database. The build stage applies that database with
:func:`apply_database`.
"""

from __future__ import annotations

from tvmopt.errors import ConfigError
from tvmopt.tune.apply import Applied, apply_database
from tvmopt.tune.base import Progress, TaskResult, TuneOptions, TuneResult, TuneStrategy
from tvmopt.tune.convergence import plot_convergence
from tvmopt.tune.database import (
    DatabaseKey,
    canonical_target,
    create_database,
    open_database,
)
from tvmopt.tune.default import DefaultStrategy
from tvmopt.tune.fast import FastStrategy
from tvmopt.tune.metaschedule import MetaScheduleStrategy
from tvmopt.tune.none import NoneStrategy
from tvmopt.tune.report import task_rows, write_task_csv, write_task_markdown
from tvmopt.tune.tasks import Task, extract_tasks

__all__ = [
    "STRATEGIES",
    "Applied",
    "DatabaseKey",
    "DefaultStrategy",
    "FastStrategy",
    "MetaScheduleStrategy",
    "NoneStrategy",
    "Progress",
    "Task",
    "TaskResult",
    "TuneOptions",
    "TuneResult",
    "TuneStrategy",
    "apply_database",
    "canonical_target",
    "create_database",
    "create_strategy",
    "extract_tasks",
    "open_database",
    "plot_convergence",
    "task_rows",
    "write_task_csv",
    "write_task_markdown",
]

STRATEGIES: dict[str, type[TuneStrategy]] = {
    "none": NoneStrategy,
    "default": DefaultStrategy,
    "fast": FastStrategy,
    "metaschedule": MetaScheduleStrategy,
}


def create_strategy(name: str) -> TuneStrategy:
    """Return a new strategy by name.

    Raises:
        ConfigError: When no strategy has this name.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"strategy must be one of {', '.join(STRATEGIES)}, but got {name!r}")
    return STRATEGIES[name]()
