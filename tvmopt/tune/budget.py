"""How a search spends its trials and its time: how much effort a batch gets, and on which task."""

from __future__ import annotations

import dataclasses
import time

# A task without a measured latency is taken to run at this rate, with this balance.
_ASSUMED_FLOPS_PER_US = 10_000.0
_ASSUMED_FLOPS_PER_BYTE = 10.0
# A search with little effort measures about this many candidates a second.
_TRIALS_PER_S = 2.0
_SMALLEST_BATCH = 4
_LARGEST_BATCH = 32


class Deadline:
    """The end of a time budget.

    Args:
        seconds: Budget from now on; 0 means no limit.
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
        """Whether ``share`` (0 to 1) of the budget is spent; never, when there is no limit."""
        return self._seconds > 0 and self.elapsed_s >= share * self._seconds


@dataclasses.dataclass(frozen=True)
class SearchEffort:
    """What the evolutionary search does between two measured batches.

    TVM's own 512 traces and 4 generations take 10 to 15 seconds a batch on two cores, many times
    what building and measuring it takes. That pays only when a trained cost model ranks them.

    Attributes:
        batch: Candidates measured at a time.
        population: Traces a generation holds.
        generations: Times the population is mutated.
    """

    batch: int
    population: int
    generations: int


def plan_effort(trials: int, time_budget_s: float, tasks: int) -> SearchEffort:
    """Effort for a budget over ``tasks``: small budgets get small batches over more tasks.

    Args:
        trials: Most candidates to measure.
        time_budget_s: Seconds to do it in; 0 means no limit.
        tasks: Tasks that share them.
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
    """Latency guessed for a task that was not measured, in microseconds.

    Args:
        flops: Arithmetic operations of one call.
        size: Bytes that one call touches.
    """
    return (flops + _ASSUMED_FLOPS_PER_BYTE * size) / _ASSUMED_FLOPS_PER_US


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Best rates seen on this machine: what a task could reach if it were as good as the best.

    Attributes:
        flops_per_us: Arithmetic operations a microsecond.
        bytes_per_us: Bytes of arguments a microsecond.
    """

    flops_per_us: float = _ASSUMED_FLOPS_PER_US
    bytes_per_us: float = _ASSUMED_FLOPS_PER_US / _ASSUMED_FLOPS_PER_BYTE

    def attainable_us(self, flops: float, size: float) -> float:
        """Latency at these rates, in microseconds, of ``flops`` operations on ``size`` bytes."""
        return max(flops / self.flops_per_us, size / self.bytes_per_us)


def priority(
    weight: int, latency_us: float, attainable_us: float, rounds: int, stale_rounds: int
) -> float:
    """How much the next batch of a task is worth; the task with the highest goes next.

    What can be won is the time between a task's latency and the roofline, over all its calls.
    Each batch makes the next one less likely to win, one that brought nothing much less.

    Args:
        weight: Calls of the task.
        latency_us: Its best latency so far, or a guess.
        attainable_us: Its latency at the roofline.
        rounds: Batches measured.
        stale_rounds: Batches since the last improvement.
    """
    headroom_us = max(latency_us - attainable_us, 0.05 * latency_us)
    return weight * headroom_us * 0.6**stale_rounds / (1.0 + 0.5 * rounds)
