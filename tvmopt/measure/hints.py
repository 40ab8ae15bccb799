"""Measure hints: build a function's candidates in worker processes, check and time them in one.

That one runs them itself, or on a board.

Building runs on all cores, timing on its own: a build beside it would show in the latencies.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import tvm
from tvm import tirx
from tvm.target import Target

from tvmopt import host
from tvmopt.measure.batch import ROUNDS
from tvmopt.measure.jobs import numpy_dtype
from tvmopt.measure.workers import Job, Outcome, WorkerPool
from tvmopt.remote import Board
from tvmopt.remote.session import WAIT_S
from tvmopt.schedule import Hint
from tvmopt.schedule.winograd import Winograd

_MOST_BUILDERS = 4
# How many times longer than others a hint of the Winograd template takes to build.
_LONG = 3
# A board may be slow, and so may the way to it.
_BOARD_S, _BOARD_S_A_HINT = 120.0, 10.0


@dataclasses.dataclass(frozen=True)
class Built:
    """Where a built hint is.

    Attributes:
        library: The library, kept until its measurer is closed.
        index: Its number in the library.
        packed: Indices of the parameters it packs, and the shapes of what they become.
        base: The function's first library, which has what its candidates are checked with.
    """

    library: Path
    index: int
    packed: tuple[list[int], list[list[int]]]
    base: Path


@dataclasses.dataclass(frozen=True)
class Measured:
    """What came of one hint.

    Attributes:
        hint: The configuration; ``hint.config_id`` names it.
        latency_us: Latency of one call in microseconds; None when it failed.
        error: Why it failed, in one line; None when it did not.
        rounds: Rounds it was timed in; losers drop out early.
        built: Where it is, to be timed again; None when it could not be built.
    """

    hint: Hint
    latency_us: float | None
    error: str | None
    rounds: int = 0
    built: Built | None = dataclasses.field(default=None, compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Candidates:
    """A function and the hints to try on it.

    Attributes:
        func: The function, unscheduled.
        hints: What to try.
        again: Earlier results of the same measurer and function, to time beside them once more.
        rounds: Most rounds to time them in.
        weight_bytes: Bytes of the weights that are read between two calls, this one's too; 0 when
            there are no others.
    """

    func: tirx.PrimFunc
    hints: Sequence[Hint]
    again: Sequence[Measured] = ()
    rounds: int = ROUNDS
    weight_bytes: int = 0


class MeasuringWorkers:
    """Workers that build, one that runs, and the libraries between them.

    Args:
        builders: Worker processes that build.
        threads: Threads of the one that runs.
        scratch: Directory for libraries and logs.
    """

    def __init__(self, builders: int, threads: int, scratch: Path) -> None:
        self._scratch = scratch
        self._names = itertools.count()
        self._libraries: list[Path] = []
        self._builders = WorkerPool(builders, 1, scratch, "build")
        self._runner = WorkerPool(1, threads, scratch, "run")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._builders.close()
        self._runner.close()
        for library in self._libraries:
            library.unlink(missing_ok=True)

    def _new_library(self) -> Path:
        """Where the next library goes; it is kept until the end."""
        library = self._scratch / f"candidates{next(self._names)}.so"
        self._libraries.append(library)
        return library


class HintMeasurer(MeasuringWorkers):
    """Builds and times hints.

    Args:
        target: Target to build for.
        threads: Threads a candidate runs with.
        scratch: Directory for libraries and logs.
        seed: Seed of the random inputs.
        builders: Worker processes that build; 0 is one a core.
        build_timeout_s: Seconds after which a batch of builds is given up, one hint.
        run_timeout_s: Seconds after which checking and timing one hint is given up.
        board: Where to check and time; None for this machine.
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
        board: Board | None = None,
    ) -> None:
        super().__init__(
            builders or min(_MOST_BUILDERS, host.usable_cores()), threads, scratch
        )
        self._target = str(target)
        self._seed = seed
        self._timeouts = build_timeout_s, run_timeout_s
        self._board, self._threads = board, threads

    def measure(
        self, groups: Sequence[Candidates], stop: Callable[[], bool] = lambda: False
    ) -> list[list[Measured]]:
        """Measure several functions' hints: build all, then time all.

        Args:
            groups: Functions with their hints.
            stop: Asked between steps; once true, the rest is left out.

        Returns:
            For each group the results of ``again``, then one a hint, in order; empty for groups
            left out.
        """
        jobs, libraries = [], []
        # What takes longest first, so that no builder waits long for the other at the end.
        new = sorted((group for group in groups if group.hints), key=_effort, reverse=True)
        for group in new:
            library = self._new_library()
            libraries.append(library)
            jobs.append(
                Job(
                    "tvmopt.measure.batch:build_batch",
                    {
                        "func": tvm.ir.save_json(group.func),
                        "hints": [hint.to_dict() for hint in group.hints],
                        "target": self._target,
                        "path": str(library),
                        "base": base_library(group) is None,
                    },
                    self._timeouts[0] * max(1, len(group.hints)),
                )
            )
        outcomes = self._builders.run(jobs, stop)
        built = {
            id(group): _found(group, library, outcome)
            for group, library, outcome in zip(new, libraries, outcomes, strict=False)
        }
        results: list[list[Measured]] = []
        for group in groups:
            if stop() or (group.hints and id(group) not in built):
                break
            results.append(self._run(group, [*group.again, *built.get(id(group), [])]))
        return results + [[] for _ in range(len(groups) - len(results))]

    def race(
        self, rivals: Sequence[tuple[tirx.PrimFunc, Measured]], weight_bytes: int = 0
    ) -> list[float | None]:
        """Latencies of functions that may take each other's place, timed in turns.

        What was measured at different times does not compare to a few percent: the speed of a
        machine changes from second to second.

        Args:
            rivals: Each function with its best result of this measurer.
            weight_bytes: As of :class:`Candidates`.

        Returns:
            Microseconds of each; None where it could not be timed, and for all on a board.
        """
        built = [(func, m.built) for func, m in rivals if m.built is not None]
        if self._board is not None or len(built) < len(rivals):
            return [None] * len(rivals)
        arguments = {
            "rivals": [
                {
                    "libraries": [str(b.base), str(b.library)],
                    "arguments": argument_types(func),
                    "constants": _constants(func),
                    "candidate": [b.index, *b.packed],
                }
                for func, b in built
            ],
            "seed": self._seed,
            "weight_bytes": weight_bytes,
        }
        job = Job("tvmopt.measure.batch:run_rivals", arguments, self._timeouts[1] * len(built))
        [outcome] = self._runner.run([job])
        return [None] * len(rivals) if outcome.error is not None else list(outcome.value)

    def _run(self, group: Candidates, candidates: list[Measured]) -> list[Measured]:
        good = [m for m in candidates if m.built is not None]
        timed = self._time(group, good)
        reasons = {m.error for m in timed}
        if len(good) > 1 and len(reasons) == 1 and reasons != {None}:
            # The worker died of one of them; one by one, each stands for itself.
            timed = [m for one in good for m in self._time(group, [one])]
        of = {m.hint: m for m in timed}
        return [of.get(m.hint, m) for m in candidates]

    def _time(self, group: Candidates, which: list[Measured]) -> list[Measured]:
        if not which:
            return []
        built = [m.built for m in which if m.built is not None]
        libraries = list(dict.fromkeys([built[0].base, *(b.library for b in built)]))
        arguments = {
            "libraries": [str(library) for library in libraries],
            "arguments": argument_types(group.func),
            "constants": _constants(group.func),
            "candidates": [[libraries.index(b.library), b.index, *b.packed] for b in built],
            "seed": self._seed,
            "rounds": group.rounds,
            "weight_bytes": group.weight_bytes,
        }
        timeout_s = self._timeouts[1] + 0.5 * len(which)
        job = Job("tvmopt.measure.batch:run_batch", arguments, timeout_s)
        if self._board is not None:
            session_s = _BOARD_S + _BOARD_S_A_HINT * len(which)
            arguments |= {
                "board": dataclasses.asdict(self._board),
                "threads": self._threads,
                "session_s": session_s,
            }
            job = Job("tvmopt.measure.remote:run_batch", arguments, session_s + 2 * WAIT_S)
        [outcome] = self._runner.run([job])
        if outcome.error is not None:
            error = f"run: {outcome.error}"
            return [dataclasses.replace(m, latency_us=None, rounds=0, error=error) for m in which]
        return [
            dataclasses.replace(m, **found)
            for m, found in zip(which, outcome.value, strict=True)
        ]


def base_library(group: Candidates) -> Path | None:
    """The first library of a function that was measured before; None when it was not."""
    return next((m.built.base for m in group.again if m.built is not None), None)


def _found(group: Candidates, library: Path, outcome: Outcome) -> list[Measured]:
    """What became of the hints of one library; not timed yet."""
    if outcome.error is not None:
        return [Measured(hint, None, f"build: {outcome.error}") for hint in group.hints]
    errors, packed = outcome.value["errors"], outcome.value["packed"]
    base = base_library(group) or library
    places = [
        None if error else Built(library, n, parts or ([], []), base)
        for n, (error, parts) in enumerate(zip(errors, packed, strict=True))
    ]
    return [
        Measured(hint, None, error, built=place)
        for hint, error, place in zip(group.hints, errors, places, strict=True)
    ]


def _effort(group: Candidates) -> int:
    """How long the builds of a group take, roughly: transforms are much straight-line code."""
    return sum(_LONG if hint.template == Winograd.name else 1 for hint in group.hints)


def argument_types(func: tirx.PrimFunc) -> list[list[Any]]:
    """Shape and type of each argument."""
    return [[[int(e) for e in p.shape], str(p.dtype)] for p in func.params]


def _constants(func: tirx.PrimFunc) -> list[int]:
    """Indices of the arguments that are weights."""
    return [int(i) for i in (func.attrs or {}).get("layout_free_buffers") or []]


def weight_bytes(func: tirx.PrimFunc) -> int:
    """Bytes of the weights that one call reads."""
    buffers = [func.params[i] for i in _constants(func)]
    return sum(
        math.prod(int(e) for e in b.shape) * numpy_dtype(str(b.dtype)).itemsize for b in buffers
    )


def best_of(results: Sequence[Measured]) -> Measured | None:
    """The fastest result; None when all failed."""
    right = [r for r in results if r.latency_us is not None]
    return min(right, key=lambda r: r.latency_us or math.inf, default=None)
