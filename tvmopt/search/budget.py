"""Budget of a study: trials, time and patience."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tvmopt.choices import at_least


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits of a whole study, over all its sessions; 0 is no limit.

    Attributes:
        trials: Maximum number of ended trials, finished or failed, after the baseline.
        time_s: Maximum seconds in which at least one process works on the study.
        patience: Maximum number of consecutive trials without a better artifact.
    """

    trials: int
    time_s: float
    patience: int = 0

    def __post_init__(self) -> None:
        at_least("trials", self.trials, 0)
        at_least("time_budget", self.time_s, 0)
        at_least("patience", self.patience, 0)


def worked_seconds(sessions: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of the intervals (start, end), in seconds."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(sessions):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
