"""Time and memory limits of a trial's stages, within the remaining budget."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

from tvmopt import host
from tvmopt.errors import LimitError
from tvmopt.search.shares import BASELINE
from tvmopt.stages.watch import Allowance

_MEMORY_SHARE = 0.8
_LATE_S = 1.0  # a stage may be stopped by so much before its limit, by another clock
BUDGET_SPENT = "time_budget"


@dataclasses.dataclass(frozen=True)
class TrialLimits:
    """Limits of one trial.

    Attributes:
        seconds: Wall time of one of its stages.
        memory_mb: Resident memory of one of its stages in megabytes; 0 for 80% of the machine's.
        left: Seconds left of the study's budget; infinite when it has none.
        budget_s: Seconds of the study's whole budget; 0 when it has none.
        is_baseline: Whether the trial is the baseline, whose stages together take a share of the
            budget at most.
        began: Start of the trial, by :func:`time.monotonic`.
    """

    seconds: float
    memory_mb: float
    left: Callable[[], float]
    budget_s: float = 0.0
    is_baseline: bool = False
    began: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def baseline_left_s(self) -> float:
        """Seconds left of the baseline's share; infinite for another trial, or without a budget."""
        if not self.is_baseline or not self.budget_s:
            return math.inf
        return BASELINE.seconds(self.budget_s) - (time.monotonic() - self.began)

    def allow(self) -> Allowance:
        """Return the limits of the next stage.

        Raises:
            LimitError: Nothing is left of the budget, or of the baseline's share.
        """
        left, of_baseline = self.left(), self.baseline_left_s
        if left <= 0:
            raise LimitError("the search has spent its time_budget", BUDGET_SPENT)
        if of_baseline <= 0:
            raise LimitError("its share is spent", "timeout")
        limits = [s for s in (self.seconds, left, of_baseline) if 0 < s < math.inf]
        return Allowance(min(limits, default=0.0), memory_mb(self.memory_mb))

    def explain(self, error: LimitError) -> LimitError:
        """Return the error, or a budget error when the budget ended before the stage's limit."""
        if error.failure_class == "timeout" and self.left() <= 0:
            return LimitError("the search has spent its time_budget", BUDGET_SPENT)
        if error.failure_class == "timeout" and self.baseline_left_s <= _LATE_S:
            return LimitError(
                f"untuned TVM may take {BASELINE.seconds(self.budget_s):.0f} s of the time_budget "
                f"of {self.budget_s:.0f} s, and took longer; the search goes on without a baseline",
                "timeout",
            )
        return error


def stage_allowance(memory_limit_mb: float, *seconds: float) -> Allowance:
    """Return the limits of a command's stage.

    Args:
        memory_limit_mb: Most memory; 0 for 80% of this machine's or container's.
        seconds: Limits of its wall time, of which the least holds; 0 for none.
    """
    limits = [limit for limit in seconds if limit]
    return Allowance(min(limits, default=0.0), memory_mb(memory_limit_mb))


def memory_mb(limit: float) -> float:
    """Return ``limit``; for 0, 80% of the memory of this machine or container."""
    return limit or _MEMORY_SHARE * host.memory_bytes() / 1e6


class Stopwatch:
    """Remaining seconds of a budget: the study's value now, then a local clock."""

    def __init__(self, budget_s: float, worked_s: float) -> None:
        self._end = time.monotonic() + budget_s - worked_s if budget_s > 0 else float("inf")

    def left(self) -> float:
        """Return the remaining seconds; infinity without a budget."""
        return self._end - time.monotonic()
