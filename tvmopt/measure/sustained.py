"""The last choice among kernels that are nearly as fast: under load, in turns.

A GPU that multiplies without a break reaches its power limit and lowers its clock, by a tenth and
more; which kernel is the fastest then is not what short bursts say. So the leaders are timed again,
longer, in rotating order: who comes after a slower one would find the GPU cooler.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping

from tvmopt.measure.batch import ROUNDS, time_in_turns
from tvmopt.measure.cuda_graph import BURST_S
from tvmopt.measure.turns import rotated

# Kernels that take less do not heat the GPU up, and differ by more than its clock does.
_SHORTEST_S = 5e-5
# Who is within this of the fastest is timed again, and how many at most; the first is always
# among them where it is near, since it is what is built without measuring.
_NEAR, _MOST = 1.12, 4
# Seconds of a turn, of all turns together, the least rounds and the most.
_TURN_S, _ALL_S, _LEAST, _ENOUGH = 5e-3, 0.8, 7, 12

#: A kernel: how often to call it -> the mean seconds of a call.
Kernel = Callable[[int], float]


def time_under_load(
    kernels: Mapping[int, Kernel], rounds: int = ROUNDS
) -> dict[int, tuple[float, int]]:
    """Latency in microseconds of each kernel, and in how many rounds it was timed.

    Args:
        kernels: Kernels, by place; one call of each times a burst of ``BURST_S``.
        rounds: Most rounds of the short bursts that come first.

    Returns:
        As :func:`tvmopt.measure.batch.time_in_turns`. Latencies of those that were not timed again
        are scaled by as much as the others slowed down, and none is below theirs: the choice is
        among those that were.
    """
    found = time_in_turns(dict(kernels), rounds)
    if not found:
        return found
    best = min(us for us, _ in found.values())
    near = [place for place, (us, _) in found.items() if us <= _NEAR * best]
    first = min(found)
    last = sorted(near, key=lambda place: (place != first, found[place][0]))[:_MOST]
    if best < _SHORTEST_S * 1e6 or len(last) < 2:
        return found
    again = _rotate({place: kernels[place] for place in last}, best * 1e-6)
    slower = max(1.0, statistics.median(again[place] / found[place][0] for place in last))
    behind = max(again.values())
    return {
        place: (again[place], timed + 1) if place in again else (max(us * slower, behind), timed)
        for place, (us, timed) in found.items()
    }


def _rotate(kernels: Mapping[int, Kernel], seconds: float) -> dict[int, float]:
    """Median microseconds of each kernel, of turns that last a while, the first round not counted.

    Args:
        kernels: The kernels, by place.
        seconds: How long a call takes, about.
    """
    calls = math.ceil(_TURN_S / max(seconds, BURST_S))
    rounds = max(_LEAST, min(_ENOUGH, int(_ALL_S / (len(kernels) * max(_TURN_S, seconds)))))
    times: dict[int, list[float]] = {place: [] for place in kernels}
    for turn in range(rounds + 1):
        for place in rotated(list(kernels), turn):
            spent = [kernels[place](1) for _ in range(calls)]
            if turn:
                times[place].append(statistics.fmean(spent) * 1e6)
    return {place: statistics.median(seen) for place, seen in times.items()}
