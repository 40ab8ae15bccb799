"""Measure hints: build a function's candidates in worker processes, check and time them in one.

Building runs on all cores, timing on its own: a build beside it would show in the latencies.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from tvmopt import host
from tvmopt.measure.workers import Job, WorkerPool
from tvmopt.schedule import Hint

_MOST_BUILDERS = 4


@dataclasses.dataclass(frozen=True)
class Measured:
    """What came of one hint.

    Attributes:
        hint: The configuration; ``hint.config_id`` names it.
        latency_us: Latency of one call in microseconds; None when it failed.
        error: Why it failed, in one line; None when it did not.
        rounds: Rounds it was timed in; losers drop out early.
    """

    hint: Hint
    latency_us: float | None
    error: str | None
    rounds: int = 0


@dataclasses.dataclass(frozen=True)
class Candidates:
    """A function and the hints to try on it.

    Attributes:
        func: The function, unscheduled.
        hints: What to try.
        best_us: Best latency of earlier hints of the same function.
    """

    func: tirx.PrimFunc
    hints: Sequence[Hint]
    best_us: float | None = None


class HintMeasurer:
    """Builds and times hints.

    Args:
        target: Target to build for.
        threads: Threads a candidate runs with.
        scratch: Directory for libraries and logs.
        seed: Seed of the random inputs.
        builders: Worker processes that build; 0 is one a core.
        build_timeout_s: Seconds after which a batch of builds is given up, one hint.
        run_timeout_s: Seconds after which checking and timing one hint is given up.
    """

    def __init__(
        self,
        target: Target,
        threads: int,
        scratch: Path,
        seed: int = 0,
        builders: int = 0,
        build_timeout_s: float = 15.0,
        run_timeout_s: float = 20.0,
    ) -> None:
        self._target = str(target)
        self._scratch = scratch
        self._seed = seed
        self._timeouts = build_timeout_s, run_timeout_s
        self._names = itertools.count()
        count = builders or min(_MOST_BUILDERS, host.usable_cores())
        self._chunks = count
        self._builders = WorkerPool(count, 1, scratch, "build")
        self._runner = WorkerPool(1, threads, scratch, "run")

    def __enter__(self) -> HintMeasurer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._builders.close()
        self._runner.close()

    def measure(
        self, groups: Sequence[Candidates], stop: Callable[[], bool] = lambda: False
    ) -> list[list[Measured]]:
        """Measure several functions' hints: build all, then time all.

        Args:
            groups: Functions with their hints.
            stop: Asked between steps; once true, the rest is left out.

        Returns:
            For each group one result a hint, in order; empty for groups left out.
        """
        jobs, libraries = [], []
        for group in groups:
            library = self._scratch / f"candidates{next(self._names)}.so"
            libraries.append(library)
            jobs.append(
                Job(
                    "tvmopt.measure.batch:build_batch",
                    {
                        "func": tvm.ir.save_json(group.func),
                        "hints": [hint.to_dict() for hint in group.hints],
                        "target": self._target,
                        "path": str(library),
                    },
                    self._timeouts[0] * max(1, len(group.hints)),
                )
            )
        built = self._builders.run(jobs, stop)
        results: list[list[Measured]] = []
        for group, library, outcome in zip(groups, libraries, built, strict=False):
            if stop():
                break
            if outcome.error is not None:
                results.append([Measured(h, None, f"build: {outcome.error}") for h in group.hints])
                continue
            results.append(self._run(group, library, outcome.value))
            library.unlink(missing_ok=True)
        return results + [[] for _ in range(len(groups) - len(results))]

    def _run(self, group: Candidates, library: Path, built: dict[str, Any]) -> list[Measured]:
        good = [n for n, error in enumerate(built["errors"]) if error is None]
        outcomes = self._time(group, library, built, good)
        reasons = {outcome["error"] for outcome in outcomes.values()}
        if len(good) > 1 and len(reasons) == 1 and reasons != {None}:
            # The worker died of one of them; one by one, each stands for itself.
            outcomes = {}
            for n in good:
                outcomes |= self._time(group, library, built, [n])
        return [
            Measured(hint, outcomes[n]["latency_us"], outcomes[n]["error"], outcomes[n]["rounds"])
            if n in outcomes
            else Measured(hint, None, built["errors"][n])
            for n, hint in enumerate(group.hints)
        ]

    def _time(
        self, group: Candidates, library: Path, built: dict[str, Any], which: list[int]
    ) -> dict[int, dict[str, Any]]:
        if not which:
            return {}
        free = (group.func.attrs or {}).get("layout_free_buffers") or []
        arguments = {
            "library": str(library),
            "arguments": [[[int(e) for e in p.shape], str(p.dtype)] for p in group.func.params],
            "constants": [int(i) for i in free],
            "candidates": [[n, *(built["packed"][n] or [[], []])] for n in which],
            "seed": self._seed,
            "best_us": group.best_us,
        }
        timeout_s = self._timeouts[1] + 0.5 * len(which)
        [outcome] = self._runner.run(
            [Job("tvmopt.measure.batch:run_batch", arguments, timeout_s)]
        )
        if outcome.error is not None:
            failed = {"latency_us": None, "rounds": 0, "error": f"run: {outcome.error}"}
            return {n: dict(failed) for n in which}
        return dict(zip(which, outcome.value, strict=True))


def best_of(results: Sequence[Measured]) -> Measured | None:
    """The fastest result; None when all failed."""
    right = [r for r in results if r.latency_us is not None]
    return min(right, key=lambda r: r.latency_us or math.inf, default=None)
