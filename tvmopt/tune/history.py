"""State of each task during a search, and the log of measured candidates."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable
from typing import Any

from tvmopt.measure.measurer import Measured
from tvmopt.tune.base import TaskResult
from tvmopt.tune.budget import Roofline, estimated_us, priority
from tvmopt.tune.database import Comparison
from tvmopt.tune.default import default_source
from tvmopt.tune.tasks import Task


@dataclasses.dataclass
class TaskState:
    """State of one task during a search.

    Attributes:
        task: The task.
        rule: Name of the rule that makes its default schedule.
        key: Workload hash.
        default_us: Measured latency of the default schedule in microseconds.
        default: Result of the default schedule; None when it was not measured in this search.
        tuned_us: Best latency of a candidate or of an earlier record, in microseconds.
        tuned: Result of the best candidate; None when it is an earlier record.
        trials: Number of measured candidates.
        failures: Number of failed candidates.
        rounds: Number of measured batches; earlier records count, too.
        stale_rounds: Number of batches since the last improvement.
        closed: Reason why the search stops for this task; None while the task is open.
    """

    task: Task
    rule: str
    key: str
    default_us: float | None = None
    default: Measured | None = None
    tuned_us: float | None = None
    tuned: Measured | None = None
    trials: int = 0
    failures: int = 0
    rounds: int = 0
    stale_rounds: int = 0
    closed: str | None = None

    @property
    def best_us(self) -> float | None:
        """Best latency measured so far, over the default schedule and all candidates."""
        known = [us for us in (self.default_us, self.tuned_us) if us is not None]
        return min(known, default=None)

    def priority(self, roofline: Roofline) -> float:
        """Expected gain of the next batch of this task."""
        flops, size = self.task.flops, self.task.bytes
        return priority(
            self.task.weight,
            self.best_us or estimated_us(flops, size),
            roofline.attainable_us(flops, size),
            self.rounds,
            self.stale_rounds,
        )

    def add(self, measured: Measured) -> None:
        """Add the result of one candidate."""
        self.trials += 1
        if measured.latency_us is None:
            self.failures += 1
        elif self.tuned_us is None or measured.latency_us < self.tuned_us:
            self.tuned_us, self.tuned = measured.latency_us, measured

    def end_batch(self, best_before_us: float | None) -> None:
        """Record whether a batch improved on ``best_before_us``, the best latency before it."""
        self.rounds += 1
        improved = self.tuned_us is not None and self.tuned_us < 0.98 * (best_before_us or math.inf)
        self.stale_rounds = 0 if improved else self.stale_rounds + 1

    def comparison(self) -> Comparison:
        """Return the latencies that decide whether the record is applied."""
        return Comparison(rule=self.rule, default_us=self.default_us, tuned_us=self.tuned_us)

    def result(self) -> TaskResult:
        """Return the row of the per-task table."""
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
        if self.default is not None and self.default.error is not None:
            return f"none:default schedule {self.rule} failed: {self.default.error}"
        return default_source(self.rule)


def observed_roofline(states: Iterable[TaskState]) -> Roofline:
    """Return a roofline from the best FLOP rate and the best bandwidth measured over all tasks."""
    measured = [(state.task, state.best_us) for state in states if state.best_us]
    flops = max((task.flops / us for task, us in measured), default=0.0)
    size = max((task.bytes / us for task, us in measured), default=0.0)
    return Roofline(flops, size) if flops > 0 and size > 0 else Roofline()


class SearchLog:
    """Log with one record per measured candidate.

    Trial 0 of a task is its default schedule. It is logged, but does not count as a trial.
    """

    def __init__(self, states: list[TaskState]) -> None:
        self._states = states
        self._start = time.monotonic()
        self.records: list[dict[str, Any]] = []

    def add(self, state: TaskState, trial: int, measured: Measured) -> None:
        """Log one candidate; call it after ``state`` has the measurement."""
        self.records.append(
            {
                "elapsed_s": round(time.monotonic() - self._start, 3),
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
