"""Measure hints: build functions' candidates in worker processes, check and time them in one.

What a measurer for a CPU and one for a GPU share. Building runs on all cores, timing on its own: a
build beside it would show in the latencies.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from tvm import tirx

from tvmopt.device import dtypes
from tvmopt.kernels.hint import Hint
from tvmopt.measure.batch import ROUNDS
from tvmopt.measure.planted import planting
from tvmopt.measure.workers import Job, Outcome, WorkerPool


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


@dataclasses.dataclass(frozen=True)
class Part:
    """Hints of one function that are built into one library.

    Attributes:
        group: Number of the function.
        places: Which of its hints; none where only what they are checked with is built.
        library: Where the library goes.
    """

    group: int
    places: Sequence[int]
    library: Path


class HintMeasurer(abc.ABC):
    """Workers that build, one that runs, and the libraries between them; a context manager.

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
        parts = self._parts(groups)
        jobs = [self._build_job(groups[part.group], part) for part in parts]
        outcomes = self._build(groups, jobs, stop)
        built: list[dict[int, Measured]] = [{} for _ in groups]
        bases: dict[int, Path] = {}
        for part, outcome in zip(parts, outcomes, strict=False):
            group = groups[part.group]
            base = bases.setdefault(part.group, base_library(group) or part.library)
            built[part.group] |= _found(group, part, base, outcome)
        results: list[list[Measured]] = []
        for group, found in zip(groups, built, strict=True):
            if stop() or len(found) < len(group.hints):
                break
            new = [found[place] for place in range(len(group.hints))]
            results.append(self._run(group, [*group.again, *new]))
        return results + [[] for _ in range(len(groups) - len(results))]

    @abc.abstractmethod
    def race(
        self, rivals: Sequence[tuple[tirx.PrimFunc, Measured]], weight_bytes: int = 0
    ) -> list[float | None]:
        """Latencies of functions that may take each other's place.

        Args:
            rivals: Each function with its best result of this measurer.
            weight_bytes: As of :class:`Candidates`.

        Returns:
            Microseconds of each; None where it could not be timed.
        """

    @abc.abstractmethod
    def _parts(self, groups: Sequence[Candidates]) -> list[Part]:
        """The libraries to build, in that order; a function's first has what all are checked with.

        Parts of a function that was measured before need nothing to check with.
        """

    @abc.abstractmethod
    def _build_job(self, group: Candidates, part: Part) -> Job:
        """What builds a library."""

    @abc.abstractmethod
    def _run_job(self, group: Candidates, built: Sequence[Built], common: dict[str, Any]) -> Job:
        """What checks and times built hints of a function.

        Args:
            group: The function.
            built: The hints.
            common: Arguments that every such job has: ``libraries``, ``arguments`` and ``planted``.
        """

    @abc.abstractmethod
    def _has_died(self, timed: Sequence[Measured]) -> bool:
        """Whether the errors say that the worker died."""

    def _build(
        self, groups: Sequence[Candidates], jobs: Sequence[Job], stop: Callable[[], bool]
    ) -> list[Outcome]:
        """Build the libraries."""
        return self._builders.run(jobs, stop)

    def _believed(self, timed: list[Measured]) -> list[Measured]:
        """What is believed of what one job found."""
        return timed

    def _new_library(self) -> Path:
        """Where the next library goes; it is kept until the end."""
        library = self._scratch / f"candidates{next(self._names)}.so"
        self._libraries.append(library)
        return library

    def _run(self, group: Candidates, candidates: list[Measured]) -> list[Measured]:
        good = [m for m in candidates if m.built is not None]
        timed = self._time(group, good)
        if len(good) > 1 and self._has_died(timed):
            # The worker died of one of them; one by one, each stands for itself.
            timed = [m for one in good for m in self._time(group, [one])]
        of = {m.hint: m for m in timed}
        return [of.get(m.hint, m) for m in candidates]

    def _time(self, group: Candidates, which: list[Measured]) -> list[Measured]:
        built = [m.built for m in which if m.built is not None]
        if not built:
            return []
        libraries = list(dict.fromkeys([built[0].base, *(b.library for b in built)]))
        common = {
            "libraries": [str(library) for library in libraries],
            "arguments": argument_types(group.func),
            "planted": planting(group.func, constants(group.func)).to_dict(),
        }
        [outcome] = self._runner.run([self._run_job(group, built, common)])
        if outcome.error is not None:
            error = f"run: {outcome.error}"
            found: list[dict[str, Any]] = [
                {"latency_us": None, "rounds": 0, "error": error} for _ in which
            ]
        else:
            found = outcome.value
        return self._believed(
            [dataclasses.replace(m, **facts) for m, facts in zip(which, found, strict=True)]
        )


def base_library(group: Candidates) -> Path | None:
    """The first library of a function that was measured before; None when it was not."""
    return next((m.built.base for m in group.again if m.built is not None), None)


def _found(group: Candidates, part: Part, base: Path, outcome: Outcome) -> dict[int, Measured]:
    """What became of the hints of one library, by place; not timed yet."""
    if outcome.error is not None:
        return {p: Measured(group.hints[p], None, f"build: {outcome.error}") for p in part.places}
    errors = outcome.value["errors"]
    packed = outcome.value.get("packed") or [[]] * len(errors)
    found = {}
    for index, (place, error) in enumerate(zip(part.places, errors, strict=True)):
        built = None if error else Built(part.library, index, packed[index] or ([], []), base)
        found[place] = Measured(group.hints[place], None, error, built=built)
    return found


def argument_types(func: tirx.PrimFunc) -> list[list[Any]]:
    """Shape and type of each argument."""
    return [[[int(e) for e in p.shape], str(p.dtype)] for p in func.params]


def constants(func: tirx.PrimFunc) -> list[int]:
    """Indices of the arguments that are weights."""
    return [int(i) for i in (func.attrs or {}).get("layout_free_buffers") or []]


def weight_bytes(func: tirx.PrimFunc) -> int:
    """Bytes of the weights that one call reads."""
    buffers = [func.params[i] for i in constants(func)]
    return sum(
        math.prod(int(e) for e in b.shape) * dtypes.dtype(str(b.dtype)).numpy.itemsize
        for b in buffers
    )


def best_of(results: Sequence[Measured]) -> Measured | None:
    """The fastest result; None when all failed."""
    right = [r for r in results if r.latency_us is not None]
    return min(right, key=lambda r: r.latency_us or math.inf, default=None)
