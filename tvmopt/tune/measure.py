"""Measure candidates of a task: build them in parallel, then check and time them one at a time.

Timing never overlaps with building, which would distort the latencies.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.ir import IRModule
from tvm.target import Target

from tvmopt import host
from tvmopt.errors import TvmoptError
from tvmopt.measure.hints import constants
from tvmopt.measure.planted import planting
from tvmopt.measure.workers import Job, Outcome, WorkerPool
from tvmopt.remote import Board
from tvmopt.remote.session import WAIT_S
from tvmopt.tune.tasks import Task

_MOST_BUILDERS = 2


@dataclasses.dataclass(frozen=True)
class Timeouts:
    """Timeouts in seconds for the steps of one candidate.

    Attributes:
        build_s: Code generation and linking. Most candidates take 0.1 s; only excessively unrolled
            candidates, which are slow anyway, take LLVM 10 s and more.
        run_s: Checking and timing.
        reference_s: One run of the unscheduled function, which is slow.
        board_s: A session on a board, for checking or timing.
    """

    build_s: float = 10.0
    run_s: float = 20.0
    reference_s: float = 60.0
    board_s: float = 120.0


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One measured candidate.

    Attributes:
        latency_us: Latency of one call in microseconds; None when the candidate failed.
        error: One-line reason of the failure; None on success.
        library: Its shared library; None when the build failed.
        at: Time of the measurement, from :func:`time.monotonic`.
    """

    latency_us: float | None
    error: str | None
    library: Path | None
    at: float = dataclasses.field(default_factory=time.monotonic)


class Measurer:
    """Build and time candidates in worker processes.

    Args:
        target: Target to build for.
        threads: Number of threads that a candidate runs with.
        scratch: Directory for libraries, logs and temporary files.
        seed: Seed of the random inputs.
        timeouts: Timeouts of one candidate.
        board: Board that checks and times; None for the local machine.
    """

    def __init__(
        self,
        target: Target,
        threads: int,
        scratch: Path,
        seed: int,
        timeouts: Timeouts,
        board: Board | None = None,
    ) -> None:
        self._target = str(target)
        self._scratch = scratch
        self._seed = seed
        self._timeouts = timeouts
        self._names = itertools.count()
        self._references: dict[str, Path | str] = {}  # by task: library, or the error
        self._builders = WorkerPool(min(_MOST_BUILDERS, host.usable_cores()), 1, scratch, "build")
        self._runner = WorkerPool(1, threads, scratch, "run")
        self._board, self._threads = board, threads
        self._board_runner = None
        if board is not None:
            from tvmopt.measure.remote import BoardRunner

            self._board_runner = BoardRunner(board, threads, timeouts.board_s)

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._builders.close()
        self._runner.close()
        if self._board_runner is not None:
            self._board_runner.close()

    def measure(
        self,
        task: Task,
        modules: Sequence[IRModule],
        best_us: float | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Measurement]:
        """Measure candidates of one task.

        Args:
            task: The task.
            modules: Candidates: the task's module under different schedules.
            best_us: Best latency so far in microseconds; much slower candidates are timed briefly.
            stop: Polled between steps; once true, the remaining candidates are skipped.

        Returns:
            Measurements in order; fewer than ``modules`` when stopped.
        """
        first = task.name not in self._references
        built = self._build([task.mod, *modules] if first else modules, stop)
        if first and built:
            self._references[task.name] = self._check_reference(task, *built.pop(0))
        reference = self._references.get(task.name, "not built")
        if isinstance(reference, str):
            return [Measurement(None, reference, None) for _ in built]

        measurements: list[Measurement] = []
        for library, error in built:
            if stop():
                break
            if error is not None:
                measurements.append(Measurement(None, error, None))
                continue
            measurement = self.run(task, library, best_us)
            if measurement.latency_us is not None:
                best_us = min(best_us or measurement.latency_us, measurement.latency_us)
            measurements.append(measurement)
        return measurements

    def run(self, task: Task, library: Path, best_us: float | None = None) -> Measurement:
        """Check and time a library that was built for ``task``."""
        if self._board_runner is not None:
            expected = _expected_file(Path(self._references[task.name]))
            try:
                latency_us = self._board_runner.run(library, expected, _arguments(task))
            except TvmoptError as error:
                return Measurement(None, f"run: {error}", library)
            return Measurement(latency_us, None, library)
        arguments = {
            "library": str(library),
            "reference_library": str(self._references[task.name]),
            "arguments": _arguments(task),
            "seed": self._seed,
            "best_us": best_us,
            "planted": _planted(task),
        }
        outcome = self._one("run", arguments, self._timeouts.run_s)
        if outcome.error is not None:
            return Measurement(None, f"run: {outcome.error}", library)
        return Measurement(float(outcome.value), None, library)

    def _check_reference(self, task: Task, library: Path, error: str | None) -> Path | str:
        """Run the unscheduled function; return its library, or the error."""
        if error is not None:
            return f"reference {error}"
        arguments: dict[str, Any] = {
            "library": str(library),
            "arguments": _arguments(task),
            "seed": self._seed,
            "planted": _planted(task),
        }
        if self._board is None:
            outcome = self._one("reference", arguments, self._timeouts.reference_s)
        else:
            session_s = self._timeouts.board_s
            arguments |= {
                "board": dataclasses.asdict(self._board),
                "threads": self._threads,
                "session_s": session_s,
                "path": str(_expected_file(library)),
            }
            name = "tvmopt.measure.remote:reference"
            outcome = self._one(name, arguments, session_s + 2 * WAIT_S)
        return library if outcome.error is None else f"reference run: {outcome.error}"

    def _build(
        self, modules: Sequence[IRModule], stop: Callable[[], bool]
    ) -> list[tuple[Path, str | None]]:
        """Build modules; return each library with None, or with the error."""
        libraries = [self._scratch / f"candidate{next(self._names)}.so" for _ in modules]
        jobs = [
            Job(
                "tvmopt.measure.jobs:build",
                {
                    "module": tvm.ir.save_json(module),
                    "target": self._target,
                    "path": str(library),
                },
                self._timeouts.build_s,
            )
            for module, library in zip(modules, libraries, strict=True)
        ]
        outcomes = self._builders.run(jobs, stop)
        return [
            (library, f"build: {outcome.error}" if outcome.error else None)
            for library, outcome in zip(libraries, outcomes, strict=False)  # fewer when stopped
        ]

    def _one(self, function: str, arguments: dict[str, Any], timeout_s: float) -> Outcome:
        name = function if ":" in function else f"tvmopt.measure.jobs:{function}"
        [outcome] = self._runner.run([Job(name, arguments, timeout_s)])
        return outcome


def _expected_file(reference: Path) -> Path:
    """Return the file with the reference outputs that a board produced."""
    return reference.with_suffix(".expected.npz")


def _planted(task: Task) -> dict[str, Any]:
    func = task.mod["main"]
    return planting(func, constants(func)).to_dict()


def _arguments(task: Task) -> list[list[Any]]:
    return [[list(argument.shape or ()), argument.dtype] for argument in task.arguments]
