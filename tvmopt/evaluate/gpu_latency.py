"""Latency and throughput on this machine's GPU, by its own clock.

A call is timed between two events on one stream, its inputs and outputs staying on the GPU: what
the host takes to launch it counts, what copies take does not.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping

from tvmopt.evaluate.latency import calls_within, one_turn, take_turns
from tvmopt.measure.cuda_graph import GraphTimer

_WARM_UP = 3
# How long a burst of calls lasts that gives the throughput, and the most calls in it.
_BURST_S, _MOST_CALLS = 0.5, 1000


def interleave_on_gpu(
    contenders: Mapping[str, Callable[[], object]],
    on_host: Mapping[str, Callable[[], object]],
    repeats: int,
    time_limit_s: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, list[float]]:
    """Latency samples of every contender, in seconds, collected in turns.

    Args:
        contenders: Launch their work on TVM's stream, by name, and need not wait for it.
        on_host: Others that the host computes; timed by its clock.
        repeats: Samples of each; slow ones give fewer.
        time_limit_s: Most seconds for one contender.
        progress: Called after each round.
    """
    with GraphTimer() as timer:
        turns: dict[str, Callable[[int], list[float]]] = {}
        counts: dict[str, int] = {}
        for name, call in contenders.items():
            once = min(_on_gpu(timer, call, _WARM_UP))
            counts[name] = calls_within(time_limit_s, once, repeats)
            turns[name] = functools.partial(_turn, timer, call)
        for name, call in on_host.items():
            call()
            start = time.perf_counter()
            call()
            once = time.perf_counter() - start
            counts[name] = calls_within(time_limit_s, once, repeats)
            turns[name] = functools.partial(one_turn, call, once < time_limit_s / 10)
        return take_turns(turns, counts, progress)


def seconds_in_a_row(call: Callable[[], object]) -> float:
    """Mean seconds of a call among many that nothing waits between."""
    with GraphTimer() as timer:
        once = min(_on_gpu(timer, call, _WARM_UP))
        count = max(1, min(_MOST_CALLS, round(_BURST_S / max(once, 1e-6))))

        def burst() -> None:
            for _ in range(count):
                call()

        return timer.seconds(burst) / count


def _turn(timer: GraphTimer, call: Callable[[], object], counted: int) -> list[float]:
    """Seconds of some calls, after one that is not counted."""
    return _on_gpu(timer, call, 1 + counted)[1:]


def _on_gpu(timer: GraphTimer, call: Callable[[], object], times: int) -> list[float]:
    return [timer.seconds(call) for _ in range(times)]
