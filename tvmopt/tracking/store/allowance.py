"""Time and memory limits of a trial's stages, within the remaining budget."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from tvmopt import host
from tvmopt.errors import LimitError
from tvmopt.stages.watch import Allowance

_MEMORY_SHARE = 0.8
BUDGET_SPENT = "time_budget"


@dataclasses.dataclass(frozen=True)
class TrialLimits:
    """Limits of one trial.

    Attributes:
        seconds: Wall time of one of its stages.
        memory_mb: Resident memory of one of its stages in megabytes; 0 for 80% of the machine's.
        left: Seconds left of the study's budget; infinite when it has none.
        budget_s: Seconds of the study's whole budget; 0 when it has none.
    """

    seconds: float
    memory_mb: float
    left: Callable[[], float]
    budget_s: float = 0.0

    def allow(self) -> Allowance:
        """Return the limits of the next stage.

        Raises:
            LimitError: Nothing is left of the budget.
        """
        left = self.left()
        if left <= 0:
            raise LimitError("the search has spent its time_budget", BUDGET_SPENT)
        limits = [s for s in (self.seconds, left) if 0 < s < float("inf")]
        return Allowance(min(limits, default=0.0), memory_mb(self.memory_mb))

    def explain(self, error: LimitError) -> LimitError:
        """Return the error, or a budget error when the budget ended before the stage's limit."""
        if error.failure_class == "timeout" and self.left() <= 0:
            return LimitError("the search has spent its time_budget", BUDGET_SPENT)
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
