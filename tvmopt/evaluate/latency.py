"""Side-by-side latency: contenders take turns in one process, so that drift hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable

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
    plans = {}
    for name, call in contenders.items():
        call()
        start = time.perf_counter()
        call()
        once = time.perf_counter() - start
        counted = max(3, min(repeats, int(time_limit_s / max(once, 1e-7))))
        plans[name] = (counted, once)
    rounds = max(-(-counted // _CALLS_A_TURN) for counted, _ in plans.values())
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            counted, once = plans[name]
            due = -(-counted * (number + 1) // rounds) - len(samples[name])
            if due <= 0:
                continue
            call = contenders[name]
            time.sleep(_SETTLE_S)
            if once < time_limit_s / 10:
                call()
            for _ in range(due):
                start = time.perf_counter()
                call()
                samples[name].append(time.perf_counter() - start)
        progress(number + 1, rounds)
    return samples
