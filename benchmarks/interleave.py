"""Latency of peers side by side: blocks of calls that take turns, medians with intervals.

The workers of every runtime keep spinning on the cores for some milliseconds after its last call,
and would hit whoever runs next. So a turn is a block: first calls that do not count, until the
others have gone to sleep and the caches hold the contender's own data, then calls that do.
``tvmopt.evaluate.latency`` does the same for runtimes that are alike; here they are not.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from tvmopt.evaluate.statistics import summarise
from tvmopt.measure.interleave import rotated

_SETTLE_CALLS, _SETTLE_S = 2, 0.010
_BLOCK_S = 0.080
_FEWEST_CALLS = 3  # in a block, unless one of them takes longer than a block
_ROUNDS = 30


@dataclasses.dataclass(frozen=True)
class Timing:
    """Latency of one contender, in milliseconds.

    Attributes:
        median: Over all calls that count.
        low: Lower end of a 95% interval of the median, from the medians of the rounds; these are
            less alike than calls in one round, and so the interval is honest about drift.
        high: Upper end.
        calls: Calls that count.
        rounds: Rounds it took part in.
    """

    median: float
    low: float
    high: float
    calls: int
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.low:.3g}-{self.high:.3g})"


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    *,
    time_limit_s: float,
    rounds: int = _ROUNDS,
    budgets_s: Mapping[str, float] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time every contender in rounds, one block each a round, the order rotating.

    A block is at least two calls and 10 ms that do not count, then at least three calls and 80 ms
    that do. A contender whose single call is longer than 80 ms makes one call of either kind.

    Args:
        contenders: What to call, by name.
        time_limit_s: No round begins after that many seconds, those of ``budgets_s`` apart; the
            first always does.
        rounds: Most rounds.
        budgets_s: Seconds after which a contender sits out, for those that are hopelessly slow; by
            name, the others have no such limit. Every contender has at least one turn.
        clock: Seconds since any moment.

    Raises:
        ValueError: When ``rounds`` is not positive.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, but got {rounds}")
    names = list(contenders)
    blocks: dict[str, list[list[float]]] = {name: [] for name in names}
    spent = dict.fromkeys(names, 0.0)
    start = clock()
    for number in range(rounds):
        apart = sum(spent.get(name, 0.0) for name in budgets_s or {})
        if number and clock() - start - apart >= time_limit_s:
            break
        for name in rotated(names, number):
            if blocks[name] and spent[name] >= (budgets_s or {}).get(name, math.inf):
                continue
            began = clock()
            blocks[name].append(_turn(contenders[name], clock))
            spent[name] += clock() - began
    return {name: _timing(found) for name, found in blocks.items()}


def geometric_mean(values: Iterable[float]) -> float | None:
    """Geometric mean of positive numbers; None of none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _turn(call: Callable[[], object], clock: Callable[[], float]) -> list[float]:
    """One block: seconds of each call that counts."""
    begin, calls = clock(), 0
    while calls < _SETTLE_CALLS or clock() - begin < _SETTLE_S:
        call()
        calls += 1
        if clock() - begin >= _BLOCK_S:
            break
    begin = clock()
    seconds: list[float] = []
    while len(seconds) < _FEWEST_CALLS or clock() - begin < _BLOCK_S:
        start = clock()
        call()
        seconds.append(clock() - start)
        if seconds[-1] >= _BLOCK_S:
            break
    return seconds


def _timing(blocks: list[list[float]]) -> Timing:
    every = [seconds for block in blocks for seconds in block]
    medians = summarise([float(np.median(block)) for block in blocks])
    return Timing(
        float(np.median(every)) * 1e3, medians.ci_low, medians.ci_high, len(every), len(blocks)
    )
