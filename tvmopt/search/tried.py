"""State of one trial, as the order of trials considers it."""

from __future__ import annotations

import dataclasses

from tvmopt.search.space import Choice

FINISHED, FAILED, RUNNING = "finished", "failed", "running"


@dataclasses.dataclass(frozen=True)
class Tried:
    """State of one trial.

    Attributes:
        choice: The choice.
        state: ``"finished"``, ``"failed"`` or ``"running"``.
        violation: Sum of the relative violations; 0 when feasible.
        values: Objectives to minimise, latency first.
        inaccurate: Whether it loses more accuracy than is allowed, which neither tuning nor another
            layout will change.
    """

    choice: Choice
    state: str
    violation: float = 0.0
    values: tuple[float, ...] = ()
    inaccurate: bool = False

    @property
    def rank(self) -> tuple[float, float]:
        """Return a sort key: feasible trials by latency, then the others by violation."""
        latency = self.values[0] if self.values else float("inf")
        return (self.violation, latency)
