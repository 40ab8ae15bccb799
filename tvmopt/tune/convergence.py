"""A plot of how a search converged, from its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmopt.tune.base import TuneResult

_MOST_TASKS = 8


def plot_convergence(result: TuneResult, path: Path) -> Path | None:
    """Plot the network's best latency and the heaviest tasks' against trials and seconds.

    Args:
        result: Result of a strategy that measured.
        path: PNG file to write.

    Returns:
        ``path``, or None when nothing was measured, so that there is nothing to plot.
    """
    if not any(record["latency_us"] is not None for record in result.log):
        return None
    # Figure and canvas directly: pyplot keeps global state and may want a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    trials = list(range(1, len(result.log) + 1))
    seconds = [record["elapsed_s"] for record in result.log]
    for column, (x, label) in enumerate(((trials, "candidate"), (seconds, "seconds"))):
        total, tasks = axes[0][column], axes[1][column]
        known = [(at, r["best_total_us"] / 1e3) for at, r in zip(x, result.log, strict=True)
                 if r["best_total_us"] is not None]  # fmt: skip
        if known:
            total.step(*zip(*known, strict=True), where="post")
        for name, weight in _heaviest(result):
            points = best_so_far(result.log, name)
            tasks.step(
                [x[at] for at, _ in points],
                [weight * us / 1e3 for _, us in points],
                where="post",
                label=name if column == 0 else None,
            )
        tasks.set_yscale("log")
        tasks.set_xlabel(label)
    axes[0][0].set_ylabel("all tasks, best so far (ms)")
    axes[1][0].set_ylabel("one task, calls x best (ms)")
    axes[1][0].legend(fontsize=7)
    figure.suptitle(f"{result.strategy}: {result.trials} trials, {result.seconds:.0f} s")
    figure.savefig(path, dpi=110)
    return path


def best_so_far(log: tuple[dict[str, Any], ...], task: str) -> list[tuple[int, float]]:
    """Improvements of one task: pairs of position in the log and latency in microseconds."""
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
