"""Side-by-side latency: interleave contenders in one process, so that drift affects all equally."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from tvmopt.measure.interleave import rotated

_SETTLE_S = 0.002
_CALLS_A_ROUND = 10


def interleave(
    contenders: dict[str, Callable[[], object]],
    repeats: int,
    time_limit_s: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[float]]:
    """Return latency samples of every contender in seconds.

    In each round every contender has one block of samples, in rotating order. A block is a short
    rest, in which the previous contender's threads stop spinning, a warm-up call, then timed calls.
    Slow contenders get fewer calls, but at least 3, so that none exceeds ``time_limit_s``.
    """
    samplers: dict[str, Callable[[int], list[float]]] = {}
    counts = {}
    for name, call in contenders.items():
        samplers[name], counts[name] = host_sampler(call, repeats, time_limit_s)
    return collect_interleaved(samplers, counts, progress)


def host_sampler(
    call: Callable[[], object], repeats: int, time_limit_s: float
) -> tuple[Callable[[int], list[float]], int]:
    """Return a function that takes samples of ``call`` by the host's clock, and the sample count.

    Args:
        call: The function to time; it is called twice here.
        repeats: Number of samples, if the time limit allows.
        time_limit_s: Time limit for all samples in seconds.
    """
    call()
    start = time.perf_counter()
    call()
    once = time.perf_counter() - start
    sampler = functools.partial(sample_block, call, once < time_limit_s / 10)
    return sampler, calls_within(time_limit_s, once, repeats)


def sample_block(call: Callable[[], object], warm_up: bool, counted: int) -> list[float]:
    """Return the seconds of ``counted`` calls after a short rest and a warm-up call."""
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
    """Return how many calls of ``once`` seconds fit the limit: at least 3, at most ``most``."""
    return max(3, min(most, int(time_limit_s / max(once, 1e-7))))


def collect_interleaved(
    samplers: dict[str, Callable[[int], list[float]]],
    counts: dict[str, int],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[float]]:
    """Return samples of every contender, collected in interleaved rounds.

    Args:
        samplers: By name, a function from number of samples to samples in seconds.
        counts: Number of samples per contender.
        progress: Called after each round.
    """
    rounds = max(-(-counted // _CALLS_A_ROUND) for counted in counts.values())
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    for number in range(rounds):
        for name in rotated(list(samplers), number):
            due = -(-counts[name] * (number + 1) // rounds) - len(samples[name])
            if due > 0:
                samples[name] += samplers[name](due)
        progress(number + 1, rounds)
    return samples
