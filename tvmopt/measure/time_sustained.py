"""Time the fastest kernels again under sustained load, in rotating order.

A GPU under continuous matmul load reaches its power limit and lowers its clock by 10 % and more.
The ranking then differs from short bursts. The leading kernels are therefore timed again for
longer. The order rotates, because a kernel that follows a slower one finds a cooler GPU.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from tvmopt.measure.cuda_graph import BURST_S
from tvmopt.measure.interleave import ROUNDS, Timing, rotated, time_interleaved

# Shorter kernels, in seconds, do not heat the GPU, and differ by more than the clock does.
_SHORTEST_S = 5e-5
# Kernels within this factor of the fastest are timed again, and at most so many. The first one is
# preferred, since it is the top-1 candidate.
_NEAR, _MOST = 1.12, 4
# Seconds of one kernel in one round and of all rounds together, minimum and maximum number of
# rounds.
_KERNEL_S, _ALL_S, _LEAST, _ENOUGH = 5e-3, 0.8, 7, 12


def time_sustained(
    kernels: Mapping[int, Timing], rounds: int = ROUNDS
) -> dict[int, tuple[float, int]]:
    """Time kernels in short bursts, then the fastest ones again under sustained load.

    Args:
        kernels: Kernels by index; one call of each times a burst of ``BURST_S``.
        rounds: Maximum number of rounds of short bursts.

    Returns:
        As :func:`~tvmopt.measure.interleave.time_interleaved`. Latencies that were not timed again
        are scaled by the median slowdown of the others, and raised to at least their maximum. The
        best kernel is thus always one that was timed again.
    """
    found = time_interleaved(kernels, rounds)
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


def _rotate(kernels: Mapping[int, Timing], seconds: float) -> dict[int, float]:
    """Return the median microseconds of each kernel over long rounds; the first is a warm-up.

    Args:
        kernels: The kernels, by index.
        seconds: Approximate duration of one call.
    """
    calls = math.ceil(_KERNEL_S / max(seconds, BURST_S))
    rounds = max(_LEAST, min(_ENOUGH, int(_ALL_S / (len(kernels) * max(_KERNEL_S, seconds)))))
    times: dict[int, list[float]] = {place: [] for place in kernels}
    for number in range(rounds + 1):
        for place in rotated(list(kernels), number):
            spent = [kernels[place](1) for _ in range(calls)]
            if number:
                times[place].append(statistics.fmean(spent) * 1e6)
    return {place: statistics.median(seen) for place, seen in times.items()}
