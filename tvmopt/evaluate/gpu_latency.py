"""Latency and throughput on this machine's GPU, from GPU timestamps.

A call is timed from the launch of its first kernel to the end of its last one. Inputs and outputs
stay on the GPU, so that copies do not count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from tvmopt.evaluate.latency import calls_within, collect_interleaved, host_sampler

_WARM_UP = 3
# Duration in seconds of a burst for throughput, and its maximum number of calls.
_BURST_S, _MOST_CALLS = 0.5, 1000


def interleave_on_gpu(
    contenders: Mapping[str, Callable[[int], float]],
    on_host: Mapping[str, Callable[[], object]],
    repeats: int,
    time_limit_s: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[float]]:
    """Return latency samples of every contender in seconds, measured in interleaved rounds.

    Args:
        contenders: By name, a function from number of calls to mean seconds per call.
        on_host: Contenders that run on the host, timed by the host's clock.
        repeats: Number of samples per contender; slow ones get fewer.
        time_limit_s: Time limit per contender in seconds.
        progress: Called after each round.
    """
    samplers: dict[str, Callable[[int], list[float]]] = {}
    counts: dict[str, int] = {}
    for name, seconds in contenders.items():
        counts[name] = calls_within(time_limit_s, _once(seconds), repeats)
        samplers[name] = functools.partial(_sample_block, seconds)
    for name, call in on_host.items():
        samplers[name], counts[name] = host_sampler(call, repeats, time_limit_s)
    return collect_interleaved(samplers, counts, progress)


def seconds_in_a_row(seconds: Callable[[int], float]) -> float:
    """Return the mean seconds per call of many back-to-back calls.

    Args:
        seconds: Function from number of calls to mean seconds per call.
    """
    count = round(_BURST_S / max(_once(seconds), 1e-6))
    return seconds(max(1, min(_MOST_CALLS, count)))


def _once(seconds: Callable[[int], float]) -> float:
    return min(seconds(1) for _ in range(_WARM_UP))


def _sample_block(seconds: Callable[[int], float], counted: int) -> list[float]:
    """Return the seconds of single calls after a warm-up call."""
    return [seconds(1) for _ in range(1 + counted)][1:]
