"""Hard constraints of a search."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tvmopt.choices import at_least

#: Metric and limit: accuracy drop on held-out samples, of a trial that led when it ended.
HELDOUT_DROP = "heldout_accuracy_drop"


@dataclasses.dataclass(frozen=True)
class Limits:
    """Hard constraints of a search; 0 is no limit, but for the accuracy.

    Attributes:
        max_accuracy_drop: Largest loss of accuracy against the float model.
        max_library_mb: Largest library, in megabytes (10^6 bytes).
        max_memory_mb: Largest peak memory of a process that runs the model, in megabytes.
        max_p99_ms: Largest 99th percentile of the latency, in milliseconds.
    """

    max_accuracy_drop: float
    max_library_mb: float = 0.0
    max_memory_mb: float = 0.0
    max_p99_ms: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            at_least(field.name, getattr(self, field.name), 0)

    def violations(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the relative violation of each limit; at most 0 where it holds.

        A limited metric that could not be measured counts as violated by 100%, but for the drop on
        held-out samples, which is limited where it was measured.
        """
        allowed = self.max_accuracy_drop
        drops = ("accuracy_drop", HELDOUT_DROP) if HELDOUT_DROP in metrics else ("accuracy_drop",)
        found = {name: (metrics[name] - allowed) / max(allowed, 0.01) for name in drops}
        limited = (
            ("library_mb", self.max_library_mb, "library_bytes", 1e-6),
            ("memory_mb", self.max_memory_mb, "peak_memory_mb", 1.0),
            ("p99_ms", self.max_p99_ms, "latency_ms_p99", 1.0),
        )
        for name, limit, metric, scale in limited:
            if limit > 0:
                value = metrics.get(metric)
                found[name] = 1.0 if value is None else (value * scale - limit) / limit
        return found


def violation(violations: Mapping[str, float]) -> float:
    """Return the sum of the relative violations; 0 for a feasible artifact."""
    return sum(max(0.0, value) for value in violations.values())
