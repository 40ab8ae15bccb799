"""Measure GPU hints: kernels are built in worker processes on all cores, and run in one.

The same steps as :mod:`.hints`; here one function's candidates are dealt to all builders, since
CUDA's compilers take longest.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import tvm
from tvm import tirx

from tvmopt import host
from tvmopt.arch.cuda import CudaArch
from tvmopt.measure.hints import (
    Built,
    Candidates,
    Measured,
    MeasuringWorkers,
    argument_types,
    base_library,
)
from tvmopt.measure.workers import Job, Outcome
from tvmopt.schedule import Hint
from tvmopt.schedule.gpu.hint import GpuHint

_MOST_BUILDERS = 16
# Rounds that tell candidates apart: a GPU's speed varies less than a CPU's.
_ROUNDS = 20
# How long a template's kernels take to make and compile, by those bound by memory.
_EFFORTS = {"hopper_gemm": 2.0, "hopper_conv": 2.0, "mma_matmul": 4.0, "gpu_int4": 1.5}
# The same of what candidates are checked with, and of multiplications in a kernel's text.
_BASE_EFFORT, _UNROLLED_EFFORT = 1.0, 1 / 400


class CudaMeasurer(MeasuringWorkers):
    """Builds and times GPU hints.

    Args:
        arch: The GPU, which must be this machine's first.
        scratch: Directory for libraries and logs.
        seed: Seed of the random inputs.
        builders: Worker processes that build; 0 is one a core.
        build_timeout_s: Seconds after which one hint's build is given up.
        run_timeout_s: Seconds after which checking and timing one function is given up.
    """

    def __init__(
        self,
        arch: CudaArch,
        scratch: Path,
        seed: int = 0,
        builders: int = 0,
        build_timeout_s: float = 60.0,
        run_timeout_s: float = 60.0,
    ) -> None:
        self._chunks = builders or min(_MOST_BUILDERS, host.usable_cores())
        super().__init__(self._chunks, 1, scratch)
        self._arch, self._seed = arch, seed
        self._timeouts = build_timeout_s, run_timeout_s

    def start(self) -> None:
        """Start the workers, whose first seconds would otherwise be the first function's."""
        warm = Job("tvmopt.measure.cuda_batch:warm_up", {"arch": self._arch.to_dict()}, 120.0)
        self._builders.run([warm] * self._chunks)
        self._runner.run([warm])

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
        jobs: list[Job] = []
        parts: list[tuple[int, list[int], Path]] = []
        for number, group in enumerate(groups):
            # What candidates are checked with is built first, the last of them after it.
            is_new = bool(group.hints) and base_library(group) is None
            chunks = _chunks(group.hints, self._chunks, _BASE_EFFORT * is_new)
            if is_new:
                chunks.insert(0, [])
            for chunk in chunks:
                library = self._new_library()
                parts.append((number, chunk, library))
                jobs.append(self._build_job(group, chunk, library))
        preparing = threading.Thread(target=self._prepare, args=(groups,))
        preparing.start()
        outcomes = self._builders.run(jobs, stop)
        preparing.join()
        built: dict[int, dict[int, Measured]] = {}
        bases: dict[int, Path] = {}
        for (number, chunk, library), outcome in zip(parts, outcomes, strict=False):
            bases.setdefault(number, base_library(groups[number]) or library)
            found = built.setdefault(number, {})
            found |= _found(groups[number], chunk, library, bases[number], outcome)
        results: list[list[Measured]] = []
        for number, group in enumerate(groups):
            done = built.get(number, {})
            if stop() or len(done) < len(group.hints):
                break
            new = [done[place] for place in range(len(group.hints))]
            results.append(self._run(group, [*group.again, *new]))
        return results + [[] for _ in range(len(groups) - len(results))]

    def race(
        self, rivals: Sequence[tuple[tirx.PrimFunc, Measured]], weight_bytes: int = 0
    ) -> list[float | None]:
        """Latencies of functions that may take each other's place: as they were measured.

        A GPU's speed does not change with what its host does.
        """
        return [measured.latency_us for _, measured in rivals]

    def _prepare(self, groups: Sequence[Candidates]) -> None:
        """Have the inputs of what is run first made while it is built."""
        first = next((group for group in groups if group.hints or group.again), None)
        if first is None:
            return
        arguments = {"arguments": argument_types(first.func), "seed": self._seed}
        job = Job("tvmopt.measure.cuda_batch:prepare", arguments, self._timeouts[1])
        self._runner.run([job])  # where it fails, running will, and say so

    def _build_job(self, group: Candidates, chunk: list[int], library: Path) -> Job:
        arguments = {
            "func": tvm.ir.save_json(group.func),
            "hints": [group.hints[place].to_dict() for place in chunk],
            "arch": self._arch.to_dict(),
            "path": str(library),
            "base": not chunk,
        }
        limit_s = self._timeouts[0] * max(1, len(chunk))
        return Job("tvmopt.measure.cuda_batch:build_batch", arguments, limit_s)

    def _run(self, group: Candidates, candidates: list[Measured]) -> list[Measured]:
        good = [m for m in candidates if m.built is not None]
        timed = self._time(group, good)
        if len(good) > 1 and any("worker" in (m.error or "") for m in timed):
            # The worker died of one of them; one by one, each stands for itself.
            timed = [m for one in good for m in self._time(group, [one])]
        of = {m.hint: m for m in timed}
        return [of.get(m.hint, m) for m in candidates]

    def _time(self, group: Candidates, which: list[Measured]) -> list[Measured]:
        built = [m.built for m in which if m.built is not None]
        if not built:
            return []
        libraries = list(dict.fromkeys([built[0].base, *(b.library for b in built)]))
        arguments = {
            "libraries": [str(library) for library in libraries],
            "arguments": argument_types(group.func),
            "candidates": [[libraries.index(b.library), b.index] for b in built],
            "seed": self._seed,
            "rounds": min(group.rounds, _ROUNDS),
        }
        job = Job("tvmopt.measure.cuda_batch:run_batch", arguments, self._timeouts[1])
        [outcome] = self._runner.run([job])
        if outcome.error is not None:
            error = f"run: {outcome.error}"
            return [dataclasses.replace(m, latency_us=None, rounds=0, error=error) for m in which]
        timed = [
            dataclasses.replace(m, **found) for m, found in zip(which, outcome.value, strict=True)
        ]
        if any("CUDA" in (m.error or "") for m in timed):
            self._runner.close()  # after a fault nothing that this process says counts
            return [
                m
                if m.error is not None
                else dataclasses.replace(m, latency_us=None, rounds=0, error="run: worker spoilt")
                for m in timed
            ]
        return timed


def _chunks(hints: Sequence[Hint], parts: int, before: float = 0.0) -> list[list[int]]:
    """The places of ``hints``, dealt to at most ``parts`` lists that take about as long to build.

    The longest first, each to the list that has least so far.

    Args:
        hints: What is dealt.
        parts: Most lists.
        before: What the builder of the last list does before.
    """
    efforts = [_effort(hint) for hint in hints]
    chunks: list[list[int]] = [[] for _ in range(min(len(hints), parts))]
    have = [0.0] * len(chunks)
    if len(chunks) == parts:
        have[-1:] = [before]
    for place in sorted(range(len(hints)), key=lambda n: -efforts[n]):
        least = have.index(min(have))
        chunks[least].append(place)
        have[least] += efforts[place]
    return [chunk for chunk in chunks if chunk]


def _effort(hint: Hint) -> float:
    """How long a hint takes to build, roughly."""
    if isinstance(hint, GpuHint) and hint.template == "simt_matmul":
        text = hint.rstep * math.prod(hint.block) / math.prod(hint.thread)
        return 1.0 + text * _UNROLLED_EFFORT
    return _EFFORTS.get(hint.template, 1.0)


def _found(
    group: Candidates, chunk: list[int], library: Path, base: Path, outcome: Outcome
) -> dict[int, Measured]:
    """What became of the hints of one library; not timed yet."""
    if outcome.error is not None:
        return {p: Measured(group.hints[p], None, f"build: {outcome.error}") for p in chunk}
    found = {}
    for index, (place, error) in enumerate(zip(chunk, outcome.value["errors"], strict=True)):
        built = None if error else Built(library, index, ([], []), base)
        found[place] = Measured(group.hints[place], None, error, built=built)
    return found
