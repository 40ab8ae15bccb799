"""Side-by-side latency: contenders take turns in one process, so that drift hits all alike."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from tvmopt.measure.turns import rotated

_SETTLE_S = 0.002
_CALLS_A_TURN = 10


def interleave(
    contenders: dict[str, Callable[[], object]],
    repeats: int,
    time_limit_s: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[float]]:
    """Latency samples of every contender, in seconds.

    In each round every contender gets one turn, the order rotating: a short rest, in which the
    last contender's threads stop spinning, a call that is not counted, then counted calls. Slow
    contenders get fewer calls, so that none takes more than ``time_limit_s``; each gets at least 3.
    """
    turns: dict[str, Callable[[int], list[float]]] = {}
    counts = {}
    for name, call in contenders.items():
        turns[name], counts[name] = host_turns(call, repeats, time_limit_s)
    return take_turns(turns, counts, progress)


def host_turns(
    call: Callable[[], object], repeats: int, time_limit_s: float
) -> tuple[Callable[[int], list[float]], int]:
    """What gives so many samples of ``call`` by the host's clock, and how many are wanted.

    Args:
        call: What is timed; it is called twice here.
        repeats: Samples wanted, where the time is enough for them.
        time_limit_s: Most seconds for all of them.
    """
    call()
    start = time.perf_counter()
    call()
    once = time.perf_counter() - start
    turn = functools.partial(one_turn, call, once < time_limit_s / 10)
    return turn, calls_within(time_limit_s, once, repeats)


def one_turn(call: Callable[[], object], warm_up: bool, counted: int) -> list[float]:
    """Seconds of ``counted`` calls after a short rest, and after one that is not counted."""
    time.sleep(_SETTLE_S)
    if warm_up:
        call()
    seconds = []
    for _ in range(counted):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def calls_within(time_limit_s: float, once: float, most: int) -> int:
    """Calls that fit a time when one takes ``once`` seconds: at least 3, and ``most`` at most."""
    return max(3, min(most, int(time_limit_s / max(once, 1e-7))))


def take_turns(
    turns: dict[str, Callable[[int], list[float]]],
    counts: dict[str, int],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[float]]:
    """Samples of every contender, collected in rounds in which each has one turn.

    Args:
        turns: Gives so many samples, in seconds, of each contender.
        counts: Samples wanted of each.
        progress: Called after each round.
    """
    rounds = max(-(-counted // _CALLS_A_TURN) for counted in counts.values())
    samples: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds):
        for name in rotated(list(turns), number):
            due = -(-counts[name] * (number + 1) // rounds) - len(samples[name])
            if due > 0:
                samples[name] += turns[name](due)
        progress(number + 1, rounds)
    return samples
