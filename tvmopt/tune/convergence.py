"""Convergence of a search: chart, and best latency by number of measured candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmopt import chart
from tvmopt.tune.base import TuneResult

_MOST_TASKS = 6  # one colour each
_MOST_NAME = 44
_MOST_POINTS = 500


def plot_convergence(result: TuneResult, path: Path) -> Path | None:
    """Plot the best latency of the network and of its heaviest tasks over candidates and seconds.

    Args:
        result: Result of a strategy that measures.
        path: PNG file to write.

    Returns:
        ``path``, or None when the log has no measured latency.
    """
    if not any(record["latency_us"] is not None for record in result.log):
        return None
    figure = chart.new_figure(10.0, 7.5)
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    candidates = [float(number) for number in range(1, len(result.log) + 1)]
    seconds = [record["elapsed_s"] for record in result.log]
    totals = [(number - 1, total_ms) for number, _, total_ms in convergence_points(result)]
    tasks = _heaviest(result)
    for column, x in enumerate((candidates, seconds)):
        _steps(axes[0][column], x, totals, "all tasks", "black")
        if totals:
            _name_ends(axes[0][column], x, totals)
        for (name, weight), colour in zip(tasks, chart.COLOURS, strict=False):
            points = [(at, weight * us / 1e3) for at, us in best_so_far(result.log, name)]
            _steps(axes[1][column], x, points, _short(name, weight), colour)
    chart.name_axes(axes[0][0], y="all tasks, best so far (ms)", title="Network")
    chart.name_axes(axes[0][1])
    chart.name_axes(
        axes[1][0],
        x="measured candidates",
        y="calls x best latency (ms)",
        title=f"The {len(tasks)} tasks with the largest share",
    )
    chart.name_axes(axes[1][1], x="time since the start (s)")
    for row in axes:
        row[0].set_ylim(0, 1.1 * row[0].get_ylim()[1])
    chart.legend_below(figure, axes[1][0], columns=2)
    figure.suptitle(
        f"Convergence of '{result.strategy}': {result.trials} candidates in {result.seconds:.0f} s",
        fontsize=13,
    )
    return chart.save(figure, path)


def convergence_points(result: TuneResult) -> list[tuple[int, float, float]]:
    """Return the best latency of all tasks together after each measured candidate.

    Args:
        result: Result of a strategy that measures.

    Returns:
        Of each point the number of measured candidates, seconds since the start, and milliseconds;
        evenly thinned to at most 501 points, the last one included. Empty while a task has no
        latency.
    """
    known = [
        (number, record["elapsed_s"], record["best_total_us"] / 1e3)
        for number, record in enumerate(result.log, 1)
        if record["best_total_us"] is not None
    ]
    step = max(1, -(-len(known) // _MOST_POINTS))
    return [point for at, point in enumerate(known) if at % step == 0 or at == len(known) - 1]


def _steps(
    axis: Any, x: list[float], points: list[tuple[int, float]], label: str, colour: str
) -> None:
    """Draw improvements as a step plot over ``x``; the last value extends to the end."""
    if points:
        held = [*points, (len(x) - 1, points[-1][1])]
        axis.step(
            [x[at] for at, _ in held], [y for _, y in held], where="post", label=label,
            color=colour, linewidth=1.6,
        )  # fmt: skip


def _name_ends(axis: Any, x: list[float], points: list[tuple[int, float]]) -> None:
    """Write the first and the last latency beside the line."""
    (first, start), (_, end) = points[0], points[-1]
    style = {"fontsize": chart.LABEL_SIZE, "textcoords": "offset points"}
    axis.annotate(f"{start:.4g} ms", (x[first], start), (4, 4), **style)
    axis.annotate(f"{end:.4g} ms", (x[-1], end), (0, -5), ha="right", va="top", **style)


def _short(name: str, weight: int) -> str:
    shown = name if len(name) <= _MOST_NAME else f"{name[: _MOST_NAME - 3]}..."
    return f"{shown} ({weight} call{'s' if weight > 1 else ''})"


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
