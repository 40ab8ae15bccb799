"""Measure candidates on a device: worker processes build them, one process checks and times them.

Builds use all cores. Timing runs alone, since a concurrent build would distort the latencies.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx

from tvmopt import host
from tvmopt.device import dtypes
from tvmopt.kernels.exact_pairs import has_exact_pairs
from tvmopt.kernels.family import Family
from tvmopt.kernels.hint import Hint
from tvmopt.kernels.policies import family_of
from tvmopt.kernels.tf32 import tf32_tolerance
from tvmopt.measure.device import Device
from tvmopt.measure.interleave import ROUNDS
from tvmopt.measure.planted import planting
from tvmopt.measure.workers import Job, Outcome, WorkerPool

# Build time of the functions that candidates share, relative to a small kernel.
_SHARED_EFFORT = 1.0


@dataclasses.dataclass(frozen=True)
class Built:
    """Location of a built candidate.

    Attributes:
        library: The library; it exists until its measurer is closed.
        index: Index of the candidate in the library.
        packed: Indices of the packed parameters, and shapes and dtypes of the packed tensors.
        base: First library of the function, which has the reference.
    """

    library: Path
    index: int
    packed: tuple[list[int], list[Any]]
    base: Path


@dataclasses.dataclass(frozen=True)
class Measured:
    """Result of one candidate.

    Attributes:
        hint: The candidate: a configuration, or a scheduled function.
        latency_us: Latency of one call in microseconds; None when the candidate failed.
        error: One-line reason of the failure; None on success.
        rounds: Number of timing rounds; slow candidates are dropped early.
        built: Location of the candidate, for timing it again; None when the build failed.
    """

    hint: Hint | tirx.PrimFunc
    latency_us: float | None
    error: str | None
    rounds: int = 0
    built: Built | None = dataclasses.field(default=None, compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Candidates:
    """A function and its candidates to measure.

    Attributes:
        func: The unscheduled function.
        hints: The candidates: configurations, or scheduled functions.
        again: Earlier results of the same measurer and function, to time again alongside.
        rounds: Maximum number of timing rounds.
        weight_bytes: Size in bytes of the network's weights, including this function's; 0 when
            there are no other layers.
        isolated: Whether each candidate is built into a separate library, since one of them may
            take too long to build.
    """

    func: tirx.PrimFunc
    hints: Sequence[Hint | tirx.PrimFunc]
    again: Sequence[Measured] = ()
    rounds: int = ROUNDS
    weight_bytes: int = 0
    isolated: bool = False


@dataclasses.dataclass(frozen=True)
class Part:
    """Candidates of one function that are built into one library.

    Attributes:
        group: Index of the function.
        places: Indices of its candidates; may be empty in the base library.
        library: Library to write.
        is_base: Whether the library has the functions that all candidates share.
    """

    group: int
    places: Sequence[int]
    library: Path
    is_base: bool


class Measurer:
    """Builder processes, one timing process, and their libraries; a context manager.

    Args:
        device: The device to measure on.
        scratch: Directory for libraries and logs.
        seed: Seed of the random inputs.
        builders: Number of worker processes that build; 0 means one per core.
    """

    def __init__(self, device: Device, scratch: Path, seed: int = 0, builders: int = 0) -> None:
        self._device, self._scratch, self._seed = device, scratch, seed
        self._count = builders or min(device.most_builders, host.usable_cores())
        self._names = itertools.count()
        self._libraries: list[Path] = []
        self._builders = WorkerPool(self._count, 1, scratch, "build")
        self._runner = WorkerPool(1, device.threads, scratch, "run")

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._builders.close()
        self._runner.close()
        for library in self._libraries:
            library.unlink(missing_ok=True)

    def measure(
        self, groups: Sequence[Candidates], stop: Callable[[], bool] = lambda: False
    ) -> list[list[Measured]]:
        """Measure the candidates of several functions: build all, then time all.

        Args:
            groups: Functions with their candidates.
            stop: Polled between steps; once true, the remaining functions are skipped.

        Returns:
            For each group the results of ``again``, then one result per candidate, in order; empty
            for skipped groups.
        """
        parts = self._parts(groups)
        outcomes = self._build(groups, parts, stop)
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

    def time_together(
        self, functions: Sequence[tuple[tirx.PrimFunc, Measured]], weight_bytes: int = 0
    ) -> list[float | None]:
        """Return comparable latencies of alternative functions, timed in interleaved rounds.

        Where the device's speed does not drift, the known latencies are comparable.

        Args:
            functions: Each function with its best result of this measurer.
            weight_bytes: As in :class:`Candidates`.

        Returns:
            Latency of each function in microseconds; None where timing failed.
        """
        if not self._device.drifts:
            return [measured.latency_us for _, measured in functions]
        if any(measured.built is None for _, measured in functions):
            return [None] * len(functions)
        groups = [Candidates(func, (), weight_bytes=weight_bytes) for func, _ in functions]
        timed = self._time([(g, [m]) for g, (_, m) in zip(groups, functions, strict=True)])
        return [measured.latency_us for measured in timed]

    def _parts(self, groups: Sequence[Candidates]) -> list[Part]:
        """Return the libraries to build, slowest functions first for load balance."""
        parts = []
        efforts = [[_effort(candidate) for candidate in group.hints] for group in groups]
        for number in sorted(range(len(groups)), key=lambda n: -sum(efforts[n])):
            group = groups[number]
            count = self._count if self._device.splits_builds else 1
            count = len(group.hints) if group.isolated else count
            is_new = bool(group.hints) and base_library(group) is None
            # The base library is built first; the last chunk follows on the same builder.
            chunks = divide(efforts[number], count, _SHARED_EFFORT * is_new)
            if is_new and count > 1:
                chunks.insert(0, [])
            for place, chunk in enumerate(chunks):
                parts.append(Part(number, chunk, self._new_library(), is_new and place == 0))
        return parts

    def _new_library(self) -> Path:
        """Return the path of a new library, which exists until the measurer is closed."""
        library = self._scratch / f"candidates{next(self._names)}.so"
        self._libraries.append(library)
        return library

    def _build(
        self, groups: Sequence[Candidates], parts: Sequence[Part], stop: Callable[[], bool]
    ) -> list[Outcome]:
        """Build the libraries; create the inputs of the first function meanwhile."""
        preparing = threading.Thread(target=self._prepare, args=(groups,))
        preparing.start()
        try:
            return self._builders.run([self._build_job(groups[p.group], p) for p in parts], stop)
        finally:
            preparing.join()

    def _prepare(self, groups: Sequence[Candidates]) -> None:
        first = next((group for group in groups if group.hints or group.again), None)
        if first is not None and self._device.prepares:
            arguments = {"device": self._device.to_dict(), "inputs": self._inputs(first)}
            # A failure shows again, with its error, when candidates run.
            limit_s = self._device.run_limit_s(0)
            self._runner.run([Job("tvmopt.measure.jobs:prepare", arguments, limit_s)])

    def _build_job(self, group: Candidates, part: Part) -> Job:
        candidates = [group.hints[place] for place in part.places]
        arguments = {
            "device": self._device.to_dict(),
            "func": tvm.ir.save_json(group.func),
            "candidates": [
                c.to_dict() if isinstance(c, Hint) else tvm.ir.save_json(c) for c in candidates
            ],
            "path": str(part.library),
            "base": part.is_base,
        }
        limit_s = self._device.build_timeout_s * max(1, len(candidates))
        return Job("tvmopt.measure.jobs:build", arguments, limit_s)

    def _run(self, group: Candidates, candidates: list[Measured]) -> list[Measured]:
        good = [m for m in candidates if m.built is not None]
        timed = self._time([(group, good)])
        if len(good) > 1 and self._device.has_died([m.error for m in timed]):
            # One candidate crashed the worker; time each of them in a separate job.
            timed = [m for one in good for m in self._time([(group, [one])])]
        results = iter(timed)
        return [m if m.built is None else next(results) for m in candidates]

    def _time(self, groups: Sequence[tuple[Candidates, list[Measured]]]) -> list[Measured]:
        """Check and time built candidates together, in one job."""
        which = [m for _, measured in groups for m in measured]
        if not which:
            return []
        arguments = {
            "device": self._device.to_dict(),
            "groups": [self._run_group(group, measured) for group, measured in groups],
            "rounds": max(group.rounds for group, _ in groups),
        }
        limit_s = sum(self._device.run_limit_s(len(measured)) for _, measured in groups)
        [outcome] = self._runner.run([Job("tvmopt.measure.jobs:run", arguments, limit_s)])
        if outcome.error is None:
            found: list[dict[str, Any]] = outcome.value
        else:
            error = f"run: {outcome.error}"
            found = [{"latency_us": None, "rounds": 0, "error": error} for _ in which]
        if self._device.is_faulted([facts["error"] for facts in found]):
            self._runner.close()
            spoilt = {"latency_us": None, "rounds": 0, "error": "run: worker spoilt"}
            found = [facts if facts["error"] else spoilt for facts in found]
        return [dataclasses.replace(m, **facts) for m, facts in zip(which, found, strict=True)]

    def _run_group(self, group: Candidates, measured: list[Measured]) -> dict[str, Any]:
        built = [m.built for m in measured if m.built is not None]
        libraries = list(dict.fromkeys([built[0].base, *(b.library for b in built)]))
        return {
            "libraries": [str(library) for library in libraries],
            "inputs": self._inputs(group),
            "candidates": [[libraries.index(b.library), b.index, *b.packed] for b in built],
        }

    def _inputs(self, group: Candidates) -> dict[str, Any]:
        weights = constants(group.func)
        how, families = planting(group.func, weights), _families(group)
        spreads = any(family.spreads_non_finite(group.func) for family in families)
        huge = how.huge and all(family.overflows_alike(group.func) for family in families)
        return {
            "arguments": argument_types(group.func),
            "constants": weights,
            "seed": self._seed,
            "planted": dataclasses.replace(how, huge=huge, spreads=spreads).to_dict(),
            "weight_bytes": group.weight_bytes,
            "tolerance": tf32_tolerance(group.func),
            "exact_pairs": has_exact_pairs(group.func),
        }


def _families(group: Candidates) -> list[Family[Any, Any]]:
    """Return the families of the candidates."""
    hints = [*group.hints, *(measured.hint for measured in group.again)]
    return list({h.template: family_of(h) for h in hints if isinstance(h, Hint)}.values())


def _effort(candidate: Hint | tirx.PrimFunc) -> float:
    """Return the relative build time of a candidate."""
    return family_of(candidate).build_effort(candidate) if isinstance(candidate, Hint) else 1.0


def divide(efforts: Sequence[float], parts: int, before: float = 0.0) -> list[list[int]]:
    """Divide candidates among at most ``parts`` lists of similar build time.

    Longest processing time first: each candidate goes to the list with the least work so far.

    Args:
        efforts: Relative build time of each candidate.
        parts: Maximum number of lists.
        before: Work of the last list's builder before its candidates, in units of build effort.

    Returns:
        Lists of indices of candidates.
    """
    chunks: list[list[int]] = [[] for _ in range(min(len(efforts), parts))]
    have = [0.0] * len(chunks)
    if len(chunks) == parts:
        have[-1:] = [before]
    for place in sorted(range(len(efforts)), key=lambda n: -efforts[n]):
        least = have.index(min(have))
        chunks[least].append(place)
        have[least] += efforts[place]
    return [chunk for chunk in chunks if chunk]


def base_library(group: Candidates) -> Path | None:
    """Return the first library of a function that was measured before; otherwise None."""
    return next((m.built.base for m in group.again if m.built is not None), None)


def _found(group: Candidates, part: Part, base: Path, outcome: Outcome) -> dict[int, Measured]:
    """Return the build results of one library by candidate index, not timed yet."""
    if outcome.error is not None:
        return {p: Measured(group.hints[p], None, f"build: {outcome.error}") for p in part.places}
    errors = outcome.value["errors"]
    found = {}
    for index, (place, error) in enumerate(zip(part.places, errors, strict=True)):
        built = None if error else Built(part.library, index, outcome.value["packed"][index], base)
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
