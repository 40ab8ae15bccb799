"""Measure candidates: worker processes build them, one process checks and times them.

Base class of the CPU and GPU measurers. Builds use all cores. Timing runs alone, since a concurrent
build would distort the latencies.
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
    """Location of a built candidate.

    Attributes:
        library: The library; it exists until its measurer is closed.
        index: Index of the candidate in the library.
        packed: Indices of the packed parameters, and shapes of the packed tensors.
        base: First library of the function, which has the reference.
    """

    library: Path
    index: int
    packed: tuple[list[int], list[list[int]]]
    base: Path


@dataclasses.dataclass(frozen=True)
class Measured:
    """Result of one candidate.

    Attributes:
        hint: The configuration; ``hint.config_id`` identifies it.
        latency_us: Latency of one call in microseconds; None when the candidate failed.
        error: One-line reason of the failure; None on success.
        rounds: Number of timing rounds; slow candidates are dropped early.
        built: Location of the candidate, for timing it again; None when the build failed.
    """

    hint: Hint
    latency_us: float | None
    error: str | None
    rounds: int = 0
    built: Built | None = dataclasses.field(default=None, compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Candidates:
    """A function and the hints to measure.

    Attributes:
        func: The unscheduled function.
        hints: Hints to measure.
        again: Earlier results of the same measurer and function, to time again alongside.
        rounds: Maximum number of timing rounds.
        weight_bytes: Size in bytes of the network's weights, including this function's; 0 when
            there are no other layers.
    """

    func: tirx.PrimFunc
    hints: Sequence[Hint]
    again: Sequence[Measured] = ()
    rounds: int = ROUNDS
    weight_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Part:
    """Candidates of one function that are built into one library.

    Attributes:
        group: Index of the function.
        places: Indices of its hints; empty when only the reference is built.
        library: Library to write.
    """

    group: int
    places: Sequence[int]
    library: Path


class HintMeasurer(abc.ABC):
    """Builder processes, one timing process, and their libraries; a context manager.

    Args:
        builders: Number of worker processes that build.
        threads: Number of threads of the timing process.
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
        """Measure the hints of several functions: build all, then time all.

        Args:
            groups: Functions with their hints.
            stop: Polled between steps; once true, the remaining functions are skipped.

        Returns:
            For each group the results of ``again``, then one result per hint, in order; empty for
            skipped groups.
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
        """Return comparable latencies of alternative functions.

        Args:
            rivals: Each function with its best result of this measurer.
            weight_bytes: As in :class:`Candidates`.

        Returns:
            Latency of each function in microseconds; None where timing failed.
        """

    @abc.abstractmethod
    def _parts(self, groups: Sequence[Candidates]) -> list[Part]:
        """Return the libraries to build, in order; a function's first library has the reference.

        Functions that were measured before need no reference.
        """

    @abc.abstractmethod
    def _build_job(self, group: Candidates, part: Part) -> Job:
        """Return the job that builds a library."""

    @abc.abstractmethod
    def _run_job(self, group: Candidates, built: Sequence[Built], common: dict[str, Any]) -> Job:
        """Return the job that checks and times built candidates of a function.

        Args:
            group: The function.
            built: The candidates.
            common: Arguments of every such job: ``libraries``, ``arguments`` and ``planted``.
        """

    @abc.abstractmethod
    def _has_died(self, timed: Sequence[Measured]) -> bool:
        """Return whether the errors mean that the worker died."""

    def _build(
        self, groups: Sequence[Candidates], jobs: Sequence[Job], stop: Callable[[], bool]
    ) -> list[Outcome]:
        """Build the libraries."""
        return self._builders.run(jobs, stop)

    def _believed(self, timed: list[Measured]) -> list[Measured]:
        """Return the valid results of one job."""
        return timed

    def _new_library(self) -> Path:
        """Return the path of a new library, which exists until the measurer is closed."""
        library = self._scratch / f"candidates{next(self._names)}.so"
        self._libraries.append(library)
        return library

    def _run(self, group: Candidates, candidates: list[Measured]) -> list[Measured]:
        good = [m for m in candidates if m.built is not None]
        timed = self._time(group, good)
        if len(good) > 1 and self._has_died(timed):
            # One candidate crashed the worker; time each of them in a job of its own.
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
    """Return the first library of a function that was measured before; otherwise None."""
    return next((m.built.base for m in group.again if m.built is not None), None)


def _found(group: Candidates, part: Part, base: Path, outcome: Outcome) -> dict[int, Measured]:
    """Return the build results of one library by hint index, not timed yet."""
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
    """Return shape and dtype of each argument."""
    return [[[int(e) for e in p.shape], str(p.dtype)] for p in func.params]


def constants(func: tirx.PrimFunc) -> list[int]:
    """Return the indices of the arguments that are weights."""
    return [int(i) for i in (func.attrs or {}).get("layout_free_buffers") or []]


def weight_bytes(func: tirx.PrimFunc) -> int:
    """Return the bytes of weights that one call reads."""
    buffers = [func.params[i] for i in constants(func)]
    return sum(
        math.prod(int(e) for e in b.shape) * dtypes.dtype(str(b.dtype)).numpy.itemsize
        for b in buffers
    )


def best_of(results: Sequence[Measured]) -> Measured | None:
    """Return the fastest result; None when all failed."""
    right = [r for r in results if r.latency_us is not None]
    return min(right, key=lambda r: r.latency_us or math.inf, default=None)
