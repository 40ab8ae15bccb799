"""The per-task table of a tuning result, as rows, CSV and Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tvmopt.markdown import table_row
from tvmopt.spreadsheet import write_csv
from tvmopt.tune.base import TaskResult

_COLUMNS = (
    "task",
    "shape",
    "granularity",
    "weight",
    "mflop",
    "source",
    "latency_us",
    "total_us",
    "gflops",
    "trials",
    "failures",
)


def task_rows(tasks: Iterable[TaskResult]) -> list[dict[str, str]]:
    """Return one formatted row per task; fields that were not measured are empty.

    ``total_us`` is the latency times the number of calls: the task's share of the inference.
    """
    return [
        {
            "task": task.name,
            "shape": task.shape,
            "granularity": task.granularity,
            "weight": str(task.weight),
            "mflop": f"{task.flops / 1e6:.3f}",
            "source": task.source,
            "latency_us": _number(task.latency_us),
            "total_us": _number(None if task.latency_us is None else task.latency_us * task.weight),
            "gflops": _number(task.gflops),
            "trials": str(task.trials),
            "failures": str(task.failures),
        }
        for task in tasks
    ]


def write_task_csv(tasks: Iterable[TaskResult], path: Path) -> Path:
    """Write the table as CSV with a header line; return ``path``."""
    with path.open("w", newline="") as file:
        write_csv(file, _COLUMNS, (row.values() for row in task_rows(tasks)))
    return path


def write_task_markdown(tasks: Iterable[TaskResult], path: Path) -> Path:
    """Write the table as Markdown; return ``path``."""
    lines = [table_row(_COLUMNS), table_row("---" for _ in _COLUMNS)]
    lines += [table_row(row[column] for column in _COLUMNS) for row in task_rows(tasks)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
