"""Budget of a search: effort per batch, and the priority of each task."""

from __future__ import annotations

import dataclasses
import time

# Assumed FLOP rate and arithmetic intensity of a task without a measured latency.
_ASSUMED_FLOPS_PER_US = 10_000.0
_ASSUMED_FLOPS_PER_BYTE = 10.0
# Approximate measuring rate of a search with little effort, in candidates per second.
_TRIALS_PER_S = 2.0
_SMALLEST_BATCH = 4
_LARGEST_BATCH = 32


class Deadline:
    """The end of a time budget.

    Args:
        seconds: Budget in seconds, from now on; 0 means no limit.
    """

    def __init__(self, seconds: float) -> None:
        self._start = time.monotonic()
        self._seconds = seconds

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def expired(self) -> bool:
        """Whether the budget is spent."""
        return self.used(1.0)

    def used(self, share: float) -> bool:
        """Return whether ``share`` (0 to 1) of the budget is spent; False without a limit."""
        return self._seconds > 0 and self.elapsed_s >= share * self._seconds


@dataclasses.dataclass(frozen=True)
class SearchEffort:
    """Effort of the evolutionary search between two measured batches.

    TVM's default is 512 traces and 4 generations, which takes 10 to 15 seconds per batch on two
    cores. That is many times the cost of building and measuring the batch, and pays off only with a
    trained cost model.

    Attributes:
        batch: Number of candidates measured at a time.
        population: Number of traces in one generation.
        generations: Number of generations.
    """

    batch: int
    population: int
    generations: int


def plan_effort(trials: int, time_budget_s: float, tasks: int) -> SearchEffort:
    """Return the effort for a budget: small budgets get small batches spread over more tasks.

    Args:
        trials: Maximum number of candidates to measure.
        time_budget_s: Time limit in seconds; 0 means no limit.
        tasks: Number of tasks that share the budget.
    """
    if time_budget_s > 0:
        trials = min(trials, int(time_budget_s * _TRIALS_PER_S))
    share = trials / max(1, tasks)
    batch = max(_SMALLEST_BATCH, min(_LARGEST_BATCH, int(share / 2)))
    if share < 32:
        return SearchEffort(batch=batch, population=48, generations=2)
    if share < 128:
        return SearchEffort(batch=batch, population=128, generations=3)
    return SearchEffort(batch=batch, population=192, generations=3)


def estimated_us(flops: float, size: float) -> float:
    """Return the estimated latency of an unmeasured task in microseconds.

    Args:
        flops: FLOPs of one call.
        size: Bytes that one call reads and writes.
    """
    return (flops + _ASSUMED_FLOPS_PER_BYTE * size) / _ASSUMED_FLOPS_PER_US


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Roofline model from the best rates measured on this machine.

    Attributes:
        flops_per_us: FLOPs per microsecond.
        bytes_per_us: Bytes of arguments per microsecond.
    """

    flops_per_us: float = _ASSUMED_FLOPS_PER_US
    bytes_per_us: float = _ASSUMED_FLOPS_PER_US / _ASSUMED_FLOPS_PER_BYTE

    def attainable_us(self, flops: float, size: float) -> float:
        """Return the roofline latency in microseconds of ``flops`` FLOPs on ``size`` bytes."""
        return max(flops / self.flops_per_us, size / self.bytes_per_us)


def priority(
    weight: int, latency_us: float, attainable_us: float, rounds: int, stale_rounds: int
) -> float:
    """Return the expected gain of the next batch of a task; the search picks the highest.

    The possible gain is the gap between the task's latency and its roofline, times its calls. Each
    measured batch lowers the chance of a further gain; a batch without improvement lowers it more.

    Args:
        weight: Number of calls of the task.
        latency_us: Best latency so far, or an estimate, in microseconds.
        attainable_us: Roofline latency in microseconds.
        rounds: Number of measured batches.
        stale_rounds: Number of batches since the last improvement.
    """
    headroom_us = max(latency_us - attainable_us, 0.05 * latency_us)
    return weight * headroom_us * 0.6**stale_rounds / (1.0 + 0.5 * rounds)
