"""Latency and throughput on this machine's GPU, by its own clock.

A call is timed from the launch of its first kernel to the end of its last, its inputs and outputs
staying on the GPU: copies do not count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from tvmopt.evaluate.latency import calls_within, host_turns, take_turns

_WARM_UP = 3
# How long a burst of calls lasts that gives the throughput, and the most calls in it.
_BURST_S, _MOST_CALLS = 0.5, 1000


def interleave_on_gpu(
    contenders: Mapping[str, Callable[[int], float]],
    on_host: Mapping[str, Callable[[], object]],
    repeats: int,
    time_limit_s: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[float]]:
    """Latency samples of every contender, in seconds, collected in turns.

    Args:
        contenders: By name, what gives the mean seconds of so many calls in a row.
        on_host: Others that the host computes; timed by its clock.
        repeats: Samples of each; slow ones give fewer.
        time_limit_s: Most seconds for one contender.
        progress: Called after each round.
    """
    turns: dict[str, Callable[[int], list[float]]] = {}
    counts: dict[str, int] = {}
    for name, seconds in contenders.items():
        counts[name] = calls_within(time_limit_s, _once(seconds), repeats)
        turns[name] = functools.partial(_turn, seconds)
    for name, call in on_host.items():
        turns[name], counts[name] = host_turns(call, repeats, time_limit_s)
    return take_turns(turns, counts, progress)


def seconds_in_a_row(seconds: Callable[[int], float]) -> float:
    """Mean seconds of a call among many that nothing waits between.

    Args:
        seconds: Gives the mean seconds of so many calls in a row.
    """
    count = round(_BURST_S / max(_once(seconds), 1e-6))
    return seconds(max(1, min(_MOST_CALLS, count)))


def _once(seconds: Callable[[int], float]) -> float:
    return min(seconds(1) for _ in range(_WARM_UP))


def _turn(seconds: Callable[[int], float], counted: int) -> list[float]:
    """Seconds of single calls, after one that is not counted."""
    return [seconds(1) for _ in range(1 + counted)][1:]
