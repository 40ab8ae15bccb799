"""What a search knows about each task while it runs, and the log of every measured candidate."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tvmopt.tune.base import TaskResult
from tvmopt.tune.budget import Roofline, estimated_us, priority
from tvmopt.tune.database import Comparison
from tvmopt.tune.default import default_source
from tvmopt.tune.measure import Measurement
from tvmopt.tune.tasks import Task


@dataclasses.dataclass
class TaskState:
    """One task during a search.

    Attributes:
        task: The task.
        rule: Rule of its default schedule.
        key: Hash of its workload.
        default_us: Measured latency of the default schedule in microseconds.
        default_library: Library of the default schedule.
        default_error: Why the default schedule cannot serve, when measuring it failed.
        tuned_us: Best measured latency of a candidate or of an earlier record.
        tuned_library: Library of that candidate; None when it came from an earlier record.
        trials: Candidates measured.
        failures: Candidates that failed.
        rounds: Batches measured, earlier records counted in.
        stale_rounds: Batches since the last improvement.
        closed: Why no more candidates are wanted; None while some are.
    """

    task: Task
    rule: str
    key: str
    default_us: float | None = None
    default_library: Path | None = None
    default_error: str | None = None
    tuned_us: float | None = None
    tuned_library: Path | None = None
    trials: int = 0
    failures: int = 0
    rounds: int = 0
    stale_rounds: int = 0
    closed: str | None = None

    @property
    def best_us(self) -> float | None:
        """Best latency measured so far under any schedule."""
        known = [us for us in (self.default_us, self.tuned_us) if us is not None]
        return min(known, default=None)

    def priority(self, roofline: Roofline) -> float:
        """What the next batch of this task is worth."""
        flops, size = self.task.flops, self.task.bytes
        return priority(
            self.task.weight,
            self.best_us or estimated_us(flops, size),
            roofline.attainable_us(flops, size),
            self.rounds,
            self.stale_rounds,
        )

    def add_default(self, measurement: Measurement) -> None:
        """Take in the measured default schedule."""
        self.default_us = measurement.latency_us
        self.default_library = measurement.library
        self.default_error = measurement.error

    def add(self, measurement: Measurement) -> None:
        """Take in one measured candidate."""
        self.trials += 1
        if measurement.latency_us is None:
            self.failures += 1
        elif self.tuned_us is None or measurement.latency_us < self.tuned_us:
            self.tuned_us = measurement.latency_us
            self.tuned_library = measurement.library

    def end_batch(self, best_before_us: float | None) -> None:
        """Note whether a batch improved on ``best_before_us``, the best record before it."""
        self.rounds += 1
        improved = self.tuned_us is not None and self.tuned_us < 0.98 * (best_before_us or math.inf)
        self.stale_rounds = 0 if improved else self.stale_rounds + 1

    def comparison(self) -> Comparison:
        """The latencies that decide whether the record serves."""
        return Comparison(rule=self.rule, default_us=self.default_us, tuned_us=self.tuned_us)

    def result(self) -> TaskResult:
        """Row of the per-task table."""
        tuned = self.tuned_us is not None and self.comparison().record_wins
        latency_us = self.tuned_us if tuned else self.default_us
        return TaskResult(
            name=self.task.name,
            shape=self.task.shape,
            weight=self.task.weight,
            flops=self.task.flops,
            source="database" if tuned else self._fallback_source(),
            latency_us=latency_us,
            gflops=self.task.flops / latency_us / 1e3 if latency_us else None,
            trials=self.trials,
            failures=self.failures,
            granularity=self.task.granularity,
        )

    def _fallback_source(self) -> str:
        if self.default_error is not None:
            return f"none:default schedule {self.rule} failed: {self.default_error}"
        return default_source(self.rule)


def observed_roofline(states: Iterable[TaskState]) -> Roofline:
    """The best arithmetic rate and the best bandwidth that any task was measured at."""
    measured = [(state.task, state.best_us) for state in states if state.best_us]
    flops = max((task.flops / us for task, us in measured), default=0.0)
    size = max((task.bytes / us for task, us in measured), default=0.0)
    return Roofline(flops, size) if flops > 0 and size > 0 else Roofline()


class SearchLog:
    """Collects one record a measured candidate.

    Trial 0 of a task is its default schedule; it is logged, and not counted as a trial.
    """

    def __init__(self, states: list[TaskState]) -> None:
        self._states = states
        self._start = time.monotonic()
        self.records: list[dict[str, Any]] = []

    def add(self, state: TaskState, trial: int, measured: Measurement) -> None:
        """Log one candidate of a task, after ``state`` took it in."""
        self.records.append(
            {
                "elapsed_s": round(measured.at - self._start, 3),
                "task": state.task.name,
                "trial": trial,
                "latency_us": measured.latency_us,
                "error": measured.error,
                "best_total_us": self._total_us(),
            }
        )

    def _total_us(self) -> float | None:
        total = 0.0
        for state in self._states:
            if state.best_us is None:
                return None
            total += state.task.weight * state.best_us
        return total
