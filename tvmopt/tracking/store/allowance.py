"""Time and memory limits of a trial's stages, within the remaining budget."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from tvmopt import host
from tvmopt.errors import LimitError
from tvmopt.stages.watch import Allowance

_MEMORY_SHARE = 0.8
# Untuned TVM may be a hundred times as slow as ONNX Runtime: the share of a search's time budget
# that one of its stages may take, and the seconds that it may take at least.
_BASELINE_SHARE, _BASELINE_LEAST_S = 0.03, 30.0
BUDGET_SPENT = "time_budget"


@dataclasses.dataclass(frozen=True)
class TrialLimits:
    """Limits of one trial.

    Attributes:
        seconds: Wall time of one of its stages.
        memory_mb: Resident memory of one of its stages in megabytes; 0 for 80% of the machine's.
        left: Seconds left of the study's budget; infinite when it has none.
        budget_s: Seconds of the study's whole budget; 0 when it has none.
        is_baseline: Whether the trial is the baseline, which takes a share of the budget at most.
    """

    seconds: float
    memory_mb: float
    left: Callable[[], float]
    budget_s: float = 0.0
    is_baseline: bool = False

    @property
    def stage_s(self) -> float:
        """Seconds of one of its stages; 0 for no limit."""
        if not self.is_baseline or not self.budget_s:
            return self.seconds
        share = max(_BASELINE_LEAST_S, _BASELINE_SHARE * self.budget_s)
        return min(self.seconds, share) if self.seconds else share

    def allow(self) -> Allowance:
        """Return the limits of the next stage.

        Raises:
            LimitError: Nothing is left of the budget.
        """
        left = self.left()
        if left <= 0:
            raise LimitError("the search has spent its time_budget", BUDGET_SPENT)
        limits = [s for s in (self.stage_s, left) if 0 < s < float("inf")]
        return Allowance(min(limits, default=0.0), memory_mb(self.memory_mb))

    def explain(self, error: LimitError) -> LimitError:
        """Return the error, or a budget error when the budget ended before the stage's limit."""
        if error.failure_class == "timeout" and self.left() <= 0:
            return LimitError("the search has spent its time_budget", BUDGET_SPENT)
        if error.failure_class == "timeout" and self.stage_s != self.seconds:
            return LimitError(
                f"a stage of untuned TVM may take {self.stage_s:.0f} s of the time_budget of "
                f"{self.budget_s:.0f} s, and took longer; the search goes on without a baseline",
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
