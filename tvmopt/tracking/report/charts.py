"""Plots of a search: Pareto front, history and parameter importance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import optuna

from tvmopt.search.plan import FINISHED
from tvmopt.search.sampler import distributions
from tvmopt.search.space import Space
from tvmopt.search.study import Record
from tvmopt.tracking.trial import ADJUSTED

_SIZE = (8.0, 4.8)
_LEAST_FOR_IMPORTANCE = 4
_LABEL_LINES = 4
_LATENCY = "p50 in ms, at the machine's speed of trial zero"
_REFERENCE = "ONNX Runtime float32"
_MARKS = {
    "default": "o", "fast": "^", "fast by operator": "v", "metaschedule": "s",
    "metaschedule by operator": "D", "none": "x",
}  # fmt: skip


def draw(
    records: Sequence[Record], space: Space, front: Sequence[int], winner: int, to: Path
) -> list[str]:
    """Write the plots to a folder; return the failed ones with the reason.

    Args:
        records: Trials of the study.
        space: Its space.
        front: Numbers of the trials on the Pareto front.
        winner: Number of the winning trial.
        to: Folder for ``pareto.png``, ``history.png`` and ``importances.png``.
    """
    matplotlib.use("Agg")
    finished = [r for r in records if r.state == FINISHED]
    missing = []
    if finished:
        _pareto(finished, front, winner, to / "pareto.png")
        _history(finished, to / "history.png")
    else:
        missing.append("no trial finished, so there is nothing to draw")
    reason = _importances(finished, space, to / "importances.png")
    if reason:
        missing.append(f"parameter importances are left out: {reason}")
    return missing


def _pareto(finished: list[Record], front: Sequence[int], winner: int, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    records = [r for r in finished if not r.is_baseline]
    dtypes, named = sorted({r.choice.variant.dtype for r in records}), 0
    for record in sorted(records, key=lambda r: r.metrics[ADJUSTED]):
        color = f"C{dtypes.index(record.choice.variant.dtype)}"
        mark = _MARKS[_tuning(record)]
        hollow = mark != "x" and not record.feasible
        at = (record.metrics[ADJUSTED], record.metrics["accuracy_drop"])
        axes.plot(*at, mark, color=color, fillstyle="none" if hollow else "full")
        if record.number == winner or record.number in front:
            name = f"{record.number}" + (" winner" if record.number == winner else "")
            up = 6 + 10 * (named % _LABEL_LINES)  # names of neighbours would hide each other
            axes.annotate(name, at, (0, up), textcoords="offset points", fontsize=8)
            named += 1
    on = sorted(
        (r.metrics[ADJUSTED], r.metrics["accuracy_drop"]) for r in records if r.number in front
    )
    if len(on) > 1:
        axes.step(*zip(*on, strict=True), where="post", color="0.6", linewidth=1)
    axes.axvline(_onnx_runtime(finished), color="0.5", linestyle="--", label=_REFERENCE)
    axes.set_xscale("log")
    axes.set_xlabel(_LATENCY)
    axes.set_ylabel("accuracy drop")
    for i, dtype in enumerate(dtypes):
        axes.scatter([], [], c=f"C{i}", label=dtype)
    for tuning, mark in _MARKS.items():
        if any(_tuning(r) == tuning for r in records):
            axes.scatter([], [], c="0.4", marker=mark, label=tuning)
    axes.legend(fontsize=8, title="hollow: not feasible", title_fontsize=8)
    axes.set_title("Latency and accuracy of all trials")
    figure.savefig(path, dpi=120)


def _tuning(record: Record) -> str:
    effort = record.choice.effort
    by = f" by {effort.granularity}" if effort.granularity != "subgraph" else ""
    return f"{effort.strategy}{by}"


def _history(records: list[Record], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    best, steps = math.inf, []
    for record in sorted(records, key=lambda r: r.number):
        latency = record.metrics[ADJUSTED]
        color = "C0" if record.feasible else "C3"
        color = "0.5" if record.is_baseline else color
        axes.scatter(record.number, latency, color=color, s=30)
        if record.feasible and not record.is_baseline:
            best = min(best, latency)
        steps.append((record.number, best))
    shown = [(n, b) for n, b in steps if b < math.inf]
    if shown:
        axes.step(*zip(*shown, strict=True), where="post", color="C0", label="best feasible")
    axes.axhline(_onnx_runtime(records), color="0.5", linestyle="--", label=_REFERENCE)
    for color, name in (("C0", "feasible"), ("C3", "not feasible"), ("0.5", "untuned TVM")):
        axes.scatter([], [], color=color, label=name)
    axes.set_yscale("log")
    axes.set_xlabel("trial")
    axes.set_ylabel(_LATENCY)
    axes.set_title("Latency by trial")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def _onnx_runtime(records: list[Record]) -> float:
    """Its p50 at the machine's speed of trial zero: the median of all trials."""
    found = [r.metrics[ADJUSTED] * r.metrics["speedup_vs_baseline"] for r in records]
    return statistics.median(found)


def _importances(records: list[Record], space: Space, path: Path) -> str:
    """Plot fANOVA importances of the logarithm of the latency; return why there are none."""
    from matplotlib.figure import Figure

    known = [r for r in records if r.choice in space]
    if len(known) < _LEAST_FOR_IMPORTANCE:
        return f"{_LEAST_FOR_IMPORTANCE} finished trials are needed, but there are {len(known)}"
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    for record in known:
        params = space.params(record.choice)
        study.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions=distributions(space, params),
                value=math.log(record.metrics[ADJUSTED]),
            )
        )
    if len({t.value for t in study.trials}) < 2:
        return "all latencies are the same"
    found: dict[str, Any] = optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0)
    )
    figure = Figure(figsize=(_SIZE[0], 0.8 + 0.4 * len(found)), layout="constrained")
    axes = figure.subplots()
    names = list(found)[::-1]
    axes.barh(names, [found[n] for n in names])
    axes.set_xlabel("share of the variance of log latency (fANOVA)")
    axes.set_title("What mattered")
    figure.savefig(path, dpi=120)
    return ""
