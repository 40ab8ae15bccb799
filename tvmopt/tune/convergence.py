"""Convergence plot of a tuning log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmopt.tune.base import TuneResult

_MOST_TASKS = 8


def plot_convergence(result: TuneResult, path: Path) -> Path | None:
    """Plot the best latency of the network and of its heaviest tasks over trials and seconds.

    Args:
        result: Result of a strategy that measures.
        path: PNG file to write.

    Returns:
        ``path``, or None when the log has no measured latency.
    """
    if not any(record["latency_us"] is not None for record in result.log):
        return None
    # Not pyplot: it keeps global state and may need a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    trials = [float(number) for number in range(1, len(result.log) + 1)]
    seconds = [record["elapsed_s"] for record in result.log]
    totals = [
        (at, record["best_total_us"] / 1e3)
        for at, record in enumerate(result.log)
        if record["best_total_us"] is not None
    ]
    for column, (x, label) in enumerate(((trials, "candidate"), (seconds, "seconds"))):
        _steps(axes[0][column], x, totals, "all tasks")
        for name, weight in _heaviest(result):
            points = [(at, weight * us / 1e3) for at, us in best_so_far(result.log, name)]
            _steps(axes[1][column], x, points, name)
        axes[1][column].set_xlabel(label)
    axes[0][0].set_ylabel("all tasks, best so far (ms)")
    axes[1][0].set_ylabel("one task, calls x best (ms)")
    if axes[1][1].get_legend_handles_labels()[0]:
        axes[1][1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(f"{result.strategy}: {result.trials} trials, {result.seconds:.0f} s")
    figure.savefig(path, dpi=110)
    return path


def _steps(axis: Any, x: list[float], points: list[tuple[int, float]], label: str) -> None:
    """Draw improvements as a step plot over ``x``; the last value extends to the end."""
    if points:
        held = [*points, (len(x) - 1, points[-1][1])]
        axis.step([x[at] for at, _ in held], [y for _, y in held], where="post", label=label)


def best_so_far(log: tuple[dict[str, Any], ...], task: str) -> list[tuple[int, float]]:
    """Return improvements of one task as pairs (position in the log, latency in microseconds)."""
    points: list[tuple[int, float]] = []
    for at, record in enumerate(log):
        latency_us = record["latency_us"]
        if record["task"] != task or latency_us is None:
            continue
        if not points or latency_us < points[-1][1]:
            points.append((at, latency_us))
    return points


def _heaviest(result: TuneResult) -> list[tuple[str, int]]:
    measured = [task for task in result.tasks if task.latency_us is not None]
    measured.sort(key=lambda task: -task.weight * (task.latency_us or 0.0))
    return [(task.name, task.weight) for task in measured[:_MOST_TASKS]]
