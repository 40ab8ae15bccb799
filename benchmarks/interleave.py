"""Time contenders in interleaved blocks of calls; report medians with confidence intervals.

The worker threads of a runtime spin on the cores for some milliseconds after its last call and slow
down the next runtime. So each block begins with warm-up calls, until other threads sleep and the
caches hold the contender's data. ``tvmopt.evaluate.latency`` rests
before each block instead.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from tvmopt.evaluate.statistics import summarise
from tvmopt.measure.interleave import rotated

_WARMUP_CALLS, _WARMUP_S = 2, 0.010
_BLOCK_S = 0.080
_MIN_CALLS = 3  # per block, unless one call takes longer than a block
_ROUNDS = 30
_TURNS, _TURN_MS = 100, 0.3
_Clocks = tuple[Callable[[], float], Callable[[], float]]


@dataclasses.dataclass(frozen=True)
class Timing:
    """Latency of one contender, in milliseconds.

    Attributes:
        median: Median over all timed calls.
        low: Lower end of the 95% interval of the median, from the medians of the rounds. Rounds
            differ more than calls in one round, so the interval covers drift.
        high: Upper end of the interval.
        calls: Timed calls.
        rounds: Rounds with a block of the contender.
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
    """Time every contender in rounds of one block each, in rotating order.

    A block is a warm-up of at least 2 calls and 10 ms, then at least 3 timed calls and 80 ms. A
    contender whose single call takes more than 80 ms makes one call of each kind.

    Args:
        contenders: Functions to call, by name.
        time_limit_s: No round begins after this many seconds, except the first. The time of
            contenders in ``budgets_s`` does not count.
        rounds: Most rounds.
        budgets_s: Time limits of slow contenders in seconds, by name. A contender beyond its limit
            is skipped, but has at least one block.
        clock: Clock in seconds.

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
        excluded = sum(spent.get(name, 0.0) for name in budgets_s or {})
        if number and clock() - start - excluded >= time_limit_s:
            break
        for name in rotated(names, number):
            if blocks[name] and spent[name] >= (budgets_s or {}).get(name, math.inf):
                continue
            began = clock()
            blocks[name].append(_block(contenders[name], clock))
            spent[name] += clock() - began
    return {name: _timing(found) for name, found in blocks.items()}


@dataclasses.dataclass(frozen=True)
class ShortTurns:
    """Times of a call over many short turns, in milliseconds.

    Attributes:
        median: Median of the wall times. Most turns end before the system gives the core away.
        least_cpu: Least CPU time of the process. Other processes that hold the cores do not count,
            but share caches and memory bandwidth. The spinning threads of a pool count: give each
            contender one thread.
    """

    median: float
    least_cpu: float


def short_turns(
    contenders: Mapping[str, Callable[[], object]],
    *,
    turns: int = _TURNS,
    clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
) -> dict[str, ShortTurns]:
    """Time every contender in turns of at least one call and 0.3 ms, one contender after the other.

    Args:
        contenders: Functions to call, by name.
        turns: Turns of each contender.
        clock: Clock in seconds.
        cpu_clock: CPU time of the process in seconds.

    Raises:
        ValueError: When ``turns`` is not positive.
    """
    if turns < 1:
        raise ValueError(f"turns must be at least 1, but got {turns}")
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    clocks = clock, cpu_clock
    calls = {name: _calls_of_turn(call, clocks) for name, call in contenders.items()}
    for _ in range(turns):
        for name, call in contenders.items():
            call()
            found[name].append(_turn(call, calls[name], clocks))
    return {
        name: ShortTurns(float(np.median([wall for wall, _ in each])), min(c for _, c in each))
        for name, each in found.items()
    }


def _calls_of_turn(call: Callable[[], object], clocks: _Clocks) -> int:
    """Return a number of calls that take ``_TURN_MS``."""
    calls = 1
    while _turn(call, calls, clocks)[0] * calls < _TURN_MS:
        calls *= 2
    return calls


def _turn(call: Callable[[], object], calls: int, clocks: _Clocks) -> tuple[float, float]:
    """Return wall time and CPU time of a call in milliseconds, the mean of ``calls``."""
    begin = [clock() for clock in clocks]
    for _ in range(calls):
        call()
    wall, cpu = (clock() - start for clock, start in zip(clocks, begin, strict=True))
    return wall / calls * 1e3, cpu / calls * 1e3


def geometric_mean(values: Iterable[float]) -> float | None:
    """Geometric mean of positive numbers; None when there are none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _block(call: Callable[[], object], clock: Callable[[], float]) -> list[float]:
    """Run one block; return the seconds of each timed call."""
    begin, calls = clock(), 0
    while calls < _WARMUP_CALLS or clock() - begin < _WARMUP_S:
        call()
        calls += 1
        if clock() - begin >= _BLOCK_S:
            break
    begin = clock()
    seconds: list[float] = []
    while len(seconds) < _MIN_CALLS or clock() - begin < _BLOCK_S:
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
