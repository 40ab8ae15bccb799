"""Time kernels in interleaved rounds, so that slow phases of the machine affect all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Item = TypeVar("Item")

#: A kernel to time: number of calls -> mean seconds per call.
Timing = Callable[[int], float]

#: Maximum number of timing rounds.
ROUNDS = 40
#: Addresses of the activations on a CPU, which decide about cache conflicts. A kernel is timed on
#: all of them: ``timing(n)`` runs it ``n * PLACES`` times.
PLACES = 4
# Total time in seconds after which a kernel is not timed any more.
_SECONDS = 0.1
_MOST_CALLS = 50
# Early stopping: slowdown against the fastest kernel at which a kernel is dropped. Each limit
# holds until the given round.
_SLOWDOWN_LIMITS = {4: 1.6, 8: 1.25, 20: 1.1, ROUNDS: 1.05}


def rotated(items: Sequence[Item], count: int) -> list[Item]:
    """Return ``items`` rotated by ``count``.

    Before -> after, count 1: ``a, b, c`` -> ``b, c, a``.
    """
    start = count % max(1, len(items))
    return [*items[start:], *items[:start]]


def time_interleaved(
    kernels: Mapping[int, Timing], rounds: int = ROUNDS
) -> dict[int, tuple[float, int]]:
    """Time kernels in interleaved rounds; drop kernels far from the fastest early.

    A kernel's latency is the lower quartile over its rounds, because interference only adds time.
    Each round begins with another kernel.

    Args:
        kernels: The kernels, by index.
        rounds: Maximum number of rounds.

    Returns:
        For each kernel its latency in microseconds and the number of rounds it was timed in.
    """
    times: dict[int, list[float]] = {place: [] for place in kernels}
    alive = list(kernels)
    for number in range(rounds):
        for place in rotated(alive, number):  # the first kernel after a pause is slower
            times[place].append(_once(kernels[place], times[place]))
        if number < 2:
            continue
        estimate = {place: quartile(times[place]) for place in alive}
        best = min(estimate.values(), default=math.inf)
        limit = next(share for until, share in _SLOWDOWN_LIMITS.items() if number < until)
        alive = [
            place
            for place in alive
            if estimate[place] <= limit * best and sum(times[place]) < _SECONDS
        ]
    return {place: (quartile(seen) * 1e6, len(seen)) for place, seen in times.items()}


def _once(kernel: Timing, before: list[float]) -> float:
    """Return the mean seconds per call, over as many calls as take a millisecond."""
    calls = round(1e-3 / max(before[-1], 1e-7) / PLACES) if before else 1
    return kernel(max(1, min(_MOST_CALLS, calls)))


def quartile(values: list[float]) -> float:
    """Return the lower quartile; the first of several values is a warm-up and is dropped."""
    kept = sorted(values[1:] or values)
    return kept[len(kept) // 4]
