"""Charts of a search: Pareto front, history and parameter importance."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna

from tvmopt import chart
from tvmopt.search.records import ADJUSTED, Record
from tvmopt.search.sampler import distributions
from tvmopt.search.space import Space
from tvmopt.search.tried import FAILED, FINISHED
from tvmopt.tracking.report.sentences import effort_words, no_importances_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE = (6.8, 5.4)
_LEAST_FOR_IMPORTANCE = 4
_LATENCY = "p50 latency (ms), at the machine's speed of trial 0"
_DROP = "accuracy drop against the float model (fraction)"
_MARKS = {
    "default": "o", "fast": "^", "fast by operator": "v", "metaschedule": "s",
    "metaschedule by operator": "D", "none": "P",
}  # fmt: skip
_UNTUNED, _REFERENCE = "untuned TVM", "ONNX Runtime float32"
_NEAR, _FAR = 2.0, 3.0  # times the limit


@dataclasses.dataclass(frozen=True)
class Importances:
    """Share of each parameter in the variance of the latency, or why there is none.

    Attributes:
        shares: Share by parameter, largest first; empty when it is not computed.
        trials: Number of finished trials of the space.
    """

    shares: dict[str, float]
    trials: int

    @property
    def missing(self) -> list[str]:
        """Return why they are missing, if they are."""
        if self.shares:
            return []
        return [no_importances_words(self.trials, _LEAST_FOR_IMPORTANCE)]


@dataclasses.dataclass(frozen=True)
class Marked:
    """Trials that charts mark, and the limit that they draw.

    Attributes:
        front: Numbers of the trials on the Pareto front.
        winner: Number of the winning trial.
        is_champion: Whether the winner is the champion now.
        max_accuracy_drop: Largest loss of accuracy that is feasible.
    """

    front: Sequence[int]
    winner: int
    is_champion: bool
    max_accuracy_drop: float

    @property
    def title(self) -> str:
        """Return what the winner is called in charts."""
        return "champion" if self.is_champion else "winner, not promoted"

    def label(self, record: Record) -> str:
        """Return the label of a trial: its number, and what distinguishes it."""
        what = _UNTUNED if record.is_baseline else record.choice.variant.dtype
        end = f", {self.title}" if record.number == self.winner else ""
        return f"{record.number} {what}{end}"


def draw(records: Sequence[Record], space: Space, marked: Marked, to: Path) -> Importances:
    """Write the charts that there is data for into a folder.

    Args:
        records: Trials of the study.
        space: Its space.
        marked: Trials to mark, and the limit to draw.
        to: Folder for ``pareto.png``, ``history.png`` and ``importances.png``.

    Returns:
        The parameter importances.
    """
    finished = [r for r in records if r.state == FINISHED]
    if finished:
        chart.save(pareto_figure(finished, marked), to / "pareto.png")
        chart.save(history_figure(records, marked), to / "history.png")
    found = importances(finished, space)
    if found.shares:
        chart.save(importances_figure(found), to / "importances.png")
    return found


def pareto_figure(finished: Sequence[Record], marked: Marked) -> Figure:
    """Draw accuracy drop over latency of all finished trials."""
    figure = chart.new_figure(*_SIZE)
    axes = figure.subplots()
    records = sorted((r for r in finished if not r.is_baseline), key=_latency)
    dtypes = sorted({r.choice.variant.dtype for r in records})
    colours = dict(zip(dtypes, itertools.cycle(chart.COLOURS), strict=False))
    reference_ms = _onnx_runtime_ms(finished)
    top = _highest_drop(finished, marked.max_accuracy_drop)

    def at(record: Record) -> tuple[float, float]:
        return _latency(record), min(top, record.metrics["accuracy_drop"])

    for record in records:
        colour = colours[record.choice.variant.dtype]
        mark = _MARKS[effort_words(record.choice.effort)]
        face = colour if record.feasible else "none"
        axes.plot(*at(record), mark, color=colour, markerfacecolor=face, markersize=7, zorder=3)
    zero = [r for r in finished if r.is_baseline]
    for record in zero:
        axes.plot(*at(record), "P", color=chart.GREY, markersize=8, zorder=3, label=_UNTUNED)
    front = _staircase([at(r) for r in records if r.number in marked.front])
    if len(front) > 1:
        x, y = zip(*front, strict=True)
        axes.step(x, y, where="post", color="0.6", linewidth=1.2, label="Pareto front")
    _mark_winner(axes, [(r, *at(r)) for r in records], marked)
    for dtype, colour in colours.items():
        axes.plot([], [], "o", color=colour, label=dtype)
    for effort, mark in _MARKS.items():
        if any(effort_words(r.choice.effort) == effort for r in records):
            axes.plot([], [], mark, color="0.3", label=f"tuning: {effort}")
    if not all(r.feasible for r in records):
        axes.plot([], [], "o", color="0.3", markerfacecolor="none", label="over a limit")
    title = "Latency and accuracy of all trials"
    chart.name_axes(axes, x=_LATENCY, y=_DROP, title=title, title_gap=22)
    latencies = [_latency(r) for r in finished]
    chart.scale_for(axes.xaxis, [*latencies, reference_ms])
    axes.margins(x=0.12, y=0.12)
    limit = marked.max_accuracy_drop
    chart.name_level(axes, limit, f"limit\n{limit:g}", chart.COLOURS[1])
    chart.name_place(axes, reference_ms, f"{_REFERENCE}: {reference_ms:.3g} ms", "0.35")
    if math.isfinite(top):
        most = max(r.metrics["accuracy_drop"] for r in finished)
        chart.name_level(axes, top, f"above\n{top:.2g}, up\nto {most:.2g}", "0.55")
    named = [r for r in records if r.number == marked.winner or r.number in marked.front] + zero
    named.sort(key=lambda r: r.number != marked.winner)
    axes.autoscale_view()
    chart.legend_below(figure, axes)
    labels = [(*at(r), marked.label(r)) for r in named]
    chart.place_labels(axes, labels, [at(r) for r in finished])
    return figure


def history_figure(records: Sequence[Record], marked: Marked) -> Figure:
    """Draw the latency of each trial, the best one so far, and the trials that failed."""
    from matplotlib.ticker import MaxNLocator

    figure = chart.new_figure(*_SIZE)
    axes = figure.subplots()
    finished = sorted((r for r in records if r.state == FINISHED), key=lambda r: r.number)
    reference_ms = _onnx_runtime_ms(finished)
    trials = [r for r in finished if not r.is_baseline]
    kinds = (
        ("feasible", chart.COLOURS[0], chart.COLOURS[0], [r for r in trials if r.feasible]),
        ("over a limit", chart.COLOURS[1], "none", [r for r in trials if not r.feasible]),
        (_UNTUNED, chart.GREY, chart.GREY, [r for r in finished if r.is_baseline]),
    )
    for name, edge, face, some in kinds:
        if some:
            x, y = [r.number for r in some], [_latency(r) for r in some]
            mark = "P" if name == _UNTUNED else "o"
            axes.plot(
                x, y, mark, color=edge, markerfacecolor=face, markersize=7, zorder=3, label=name
            )
    better = _improvements(trials)
    if better:
        last = max(r.number for r in records)
        x, y = [r.number for r in better], [_latency(r) for r in better]
        blue = chart.COLOURS[0]
        axes.step([*x, last], [*y, y[-1]], where="post", color=blue, label="best so far")
    _mark_winner(axes, [(r, r.number, _latency(r)) for r in trials], marked)
    chart.name_axes(axes, x="trial number", y=_LATENCY, title="Latency by trial")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    chart.scale_for(axes.yaxis, [*(_latency(r) for r in finished), reference_ms])
    axes.margins(x=0.08, y=0.12)
    words = f"ONNX\nRuntime\nfloat32\n{reference_ms:.3g} ms"
    chart.name_level(axes, reference_ms, words, "0.35")
    failed = [r.number for r in records if r.state == FAILED]
    if failed:
        axes.plot(
            failed, [0.02] * len(failed), "x", color=chart.COLOURS[1], markersize=7, zorder=3,
            transform=axes.get_xaxis_transform(), label="failed (no latency)",
        )  # fmt: skip
    axes.autoscale_view()
    chart.legend_below(figure, axes)
    named = {r.number: r for r in [*better, *(r for r in trials if r.number == marked.winner)]}
    named |= {r.number: r for r in finished if r.is_baseline}
    labels = [(float(n), _latency(r), marked.label(r)) for n, r in named.items()]
    labels.sort(key=lambda label: label[0] != marked.winner)
    chart.place_labels(axes, labels, [(float(r.number), _latency(r)) for r in finished])
    return figure


def importances_figure(found: Importances) -> Figure:
    """Draw the importance of each parameter as a bar with its value."""
    from matplotlib.ticker import PercentFormatter

    figure = chart.new_figure(_SIZE[0], 1.4 + 0.45 * len(found.shares))
    axes = figure.subplots()
    names = list(found.shares)[::-1]
    bars = axes.barh(names, [100 * found.shares[n] for n in names], color=chart.COLOURS[0])
    axes.bar_label(bars, [f"{100 * found.shares[n]:.0f}%" for n in names], padding=4,
                   fontsize=chart.LABEL_SIZE)  # fmt: skip
    chart.name_axes(
        axes, x="share of the variance of log latency (fANOVA)",
        title=f"Importance of each parameter, from {found.trials} trials",
    )  # fmt: skip
    axes.xaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.set_xlim(0, 108)
    axes.grid(visible=False, axis="y")
    return figure


def importances(finished: Sequence[Record], space: Space) -> Importances:
    """Return fANOVA importances of the logarithm of the latency."""
    known = [r for r in finished if r.choice in space]
    nothing = Importances({}, len(known))
    if len(known) < _LEAST_FOR_IMPORTANCE:
        return nothing
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    for record in known:
        params = space.params(record.choice)
        study.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions=distributions(space, params),
                value=math.log(_latency(record)),
            )
        )
    if len({t.value for t in study.trials}) < 2:
        return nothing
    found: dict[str, Any] = optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0)
    )
    return dataclasses.replace(nothing, shares={k: float(v) for k, v in found.items()})


def _latency(record: Record) -> float:
    return record.metrics[ADJUSTED]


def _onnx_runtime_ms(records: Sequence[Record]) -> float:
    """Return its p50 at the machine's speed of trial 0: the median of all trials."""
    found = [_latency(r) * r.metrics["speedup_vs_baseline"] for r in records]
    return statistics.median(found)


def _improvements(trials: Sequence[Record]) -> list[Record]:
    """Return the feasible trials that were faster than all before; ``trials`` by number."""
    found: list[Record] = []
    for record in trials:
        if record.feasible and (not found or _latency(record) < _latency(found[-1])):
            found.append(record)
    return found


def _staircase(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other point beats in both coordinates, by the first one."""
    found: list[tuple[float, float]] = []
    for point in sorted(points):
        if not found or point[1] < found[-1][1]:
            found.append(point)
    return found


def _highest_drop(finished: Sequence[Record], limit: float) -> float:
    """Return the drop at which trials with larger ones are drawn; infinite when none is far off.

    Otherwise one useless trial would leave no height for all others.
    """
    feasible = [r.metrics["accuracy_drop"] for r in finished if r.feasible]
    unit = max(limit, *feasible, 1e-3)
    most = max(r.metrics["accuracy_drop"] for r in finished)
    return _NEAR * unit if most > _FAR * unit else math.inf


def _mark_winner(axes: Axes, points: Sequence[tuple[Record, float, float]], marked: Marked) -> None:
    for record, x, y in points:
        if record.number == marked.winner:
            axes.plot(
                x, y, "*", color=chart.GOLD, markeredgecolor="black", markersize=15, zorder=4,
                label=marked.title,
            )  # fmt: skip
