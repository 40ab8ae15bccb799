"""Compare the fast tuner with MetaSchedule, which gets ten times the wall time per task.

Both tuners begin without records and measure in separate worker processes. MetaSchedule tunes the
kernel as TVM lowers it, without Winograd. Its best record is used even if an untuned kernel is
faster. A task without a record of MetaSchedule does not count. Weights are constants, prepacked if
a schedule asks for it.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.interleave import Timing, interleave
from benchmarks.library import arrays_of, library_call
from benchmarks.tuning_tasks import TuningTask, tuned

FACTOR = 10.0  # wall time of MetaSchedule by wall time of the fast tuner
_TRIALS = 1_000_000  # no limit: the time budget ends the search
_LIMIT = 1e-3  # largest deviation between the two results, see tvmopt.compare.deviation
_UNTUNED_S = 3.0  # timing limit of an untuned kernel, which is slow


@dataclasses.dataclass(frozen=True)
class PeerRow:
    """Results of one task.

    Attributes:
        name: Name of the task.
        kind: Kind of the task.
        timings: Latency by tuner: ``fast``, ``metaschedule``.
        seconds: Tuning seconds by tuner.
        trials: Measured configurations by tuner.
        error: Largest deviation between the two results.
        note: Reason for which MetaSchedule has no record; empty if it has one.
        problem: Error of the task; empty on success.
    """

    name: str
    kind: str
    timings: dict[str, Timing] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    trials: dict[str, int] = dataclasses.field(default_factory=dict)
    error: float = math.inf
    note: str = ""
    problem: str = ""

    @property
    def right(self) -> bool:
        """Whether the task ran and both results agree."""
        return not self.problem and self.error <= _LIMIT

    @property
    def ratio(self) -> float:
        """Latency of MetaSchedule divided by latency of the fast tuner."""
        return self.timings["metaschedule"].median / self.timings["fast"].median


def compare(task: TuningTask, target: Any, topk: int, seconds: float) -> PeerRow:
    """Tune one task with both tuners, compare the results, and time both interleaved.

    Args:
        task: The task.
        target: A :class:`tvmopt.device.target.TargetSpec`.
        topk: Configurations that the fast tuner measures.
        seconds: Timing limit.
    """
    row = PeerRow(task.name, task.kind)
    try:
        with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
            return _compare(row, task, target, topk, seconds, Path(scratch))
    except Exception as error:  # one task must not cost the others their rows
        return dataclasses.replace(row, problem=report.one_line(error))


def _compare(
    row: PeerRow, task: TuningTask, target: Any, topk: int, seconds: float, scratch: Path
) -> PeerRow:
    from tvmopt.build import build_library
    from tvmopt.compare import deviation

    ours = tuned("fast", task.ours.module, target, scratch / "tuned-fast", topk=topk)
    budget_s = FACTOR * ours.seconds
    theirs = tuned(
        "metaschedule",
        task.plain.module,
        target,
        scratch / "tuned-metaschedule",
        trials=_TRIALS,
        time_budget_s=budget_s,
    )
    fast = build_library(
        task.ours.module, target, scratch / "fast.so", database_dir=ours.database_dir
    )
    replayed, found = _replayed(task.plain.module, target, theirs.database_dir)
    peer = build_library(replayed, target, scratch / "metaschedule.so", schedule="none")
    arrays = _inputs(task)
    calls = {
        "fast": library_call(fast.path, arrays),
        "metaschedule": library_call(peer.path, arrays),
    }
    results = [arrays_of(call()) for call in calls.values()]
    return dataclasses.replace(
        row,
        timings=interleave(
            calls, time_limit_s=seconds, budgets_s={} if found else {"metaschedule": _UNTUNED_S}
        ),
        seconds={"fast": ours.seconds, "metaschedule": theirs.seconds},
        trials={"fast": ours.trials, "metaschedule": theirs.trials},
        error=max(deviation(a, b) for a, b in zip(*results, strict=True)),
        note="" if found else f"no record of MetaSchedule, its column is untuned: {_why(theirs)}",
    )


def _why(result: Any) -> str:
    """Return the most frequent error of the candidates, with its count."""
    errors = collections.Counter(event["error"] for event in result.log if event["error"])
    [(reason, count)] = errors.most_common(1) or [("no candidate in time", 0)]
    return f"{count} x {reason}" if count else reason


def _replayed(module: Any, target: Any, database_dir: Any) -> tuple[Any, bool]:
    """Apply the best record, even if slower than the default; also return if one exists."""
    from tvmopt.tune import DatabaseKey, apply_database, canonical_target

    llvm = target.to_tvm()
    key = DatabaseKey(canonical_target(llvm), target.threads)
    applied = apply_database(module, database_dir, key, llvm, losers=True)
    return applied.mod, bool(applied.served)


def _inputs(task: TuningTask) -> list[np.ndarray]:
    from tvmopt.measure.check import random_array

    rng = np.random.default_rng(0)
    return [random_array(rng, shape, dtype, False) for shape, dtype in task.ours.inputs]


def table(rows: Sequence[PeerRow]) -> str:
    """Return a Markdown table, one line per task."""
    header = (
        "task", "kind", "fast us (95%)", "MetaSchedule us (95%)", "MetaSchedule / fast",
        "fast s", "MetaSchedule s", "trials", "max error",
    )  # fmt: skip
    return report.markdown(header, (_cells(row) for row in rows))


def _cells(row: PeerRow) -> list[str]:
    if row.problem:
        return [row.name, row.kind, f"FAILED: {row.problem[:120]}", *["-"] * 6]
    return [
        row.name,
        row.kind,
        _us(row.timings["fast"]),
        _us(row.timings["metaschedule"]),
        f"{row.ratio:.2f}",
        f"{row.seconds['fast']:.1f}",
        f"{row.seconds['metaschedule']:.0f}",
        f"{row.trials['fast']}, {row.trials['metaschedule']}",
        f"{row.error:.1e}" + ("" if row.right else " WRONG"),
    ]


def _us(timing: Timing) -> str:
    return f"{timing.median * 1e3:.4g} ({timing.low * 1e3:.4g}-{timing.high * 1e3:.4g})"


def faster(rows: Sequence[PeerRow]) -> tuple[int, int]:
    """Count the tasks on which the fast tuner wins, and the correct tasks with a record."""
    counted = [row for row in rows if row.right and not row.note]
    return sum(row.ratio > 1 for row in counted), len(counted)
