"""Measure GPU hints: kernels are built in worker processes on all cores, and run in one.

One function's candidates are dealt to all builders, since CUDA's compilers take longest.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx

from tvmopt import host
from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.hint import Hint
from tvmopt.kernels.policies import family_of
from tvmopt.measure.hints import (
    Built,
    Candidates,
    HintMeasurer,
    Measured,
    Part,
    argument_types,
    base_library,
)
from tvmopt.measure.workers import Job, Outcome

_MOST_BUILDERS = 16
# Rounds that tell candidates apart: a GPU's speed varies less than a CPU's.
_ROUNDS = 20
# Time to build the kernel that candidates are checked with, relative to that of small kernels.
_BASE_EFFORT = 1.0


class CudaMeasurer(HintMeasurer):
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

    def _parts(self, groups: Sequence[Candidates]) -> list[Part]:
        parts = []
        for number, group in enumerate(groups):
            # What candidates are checked with is built first, the last of them after it.
            is_new = bool(group.hints) and base_library(group) is None
            chunks = _chunks(group.hints, self._chunks, _BASE_EFFORT * is_new)
            if is_new:
                chunks.insert(0, [])
            parts += [Part(number, chunk, self._new_library()) for chunk in chunks]
        return parts

    def _build(
        self, groups: Sequence[Candidates], jobs: Sequence[Job], stop: Callable[[], bool]
    ) -> list[Outcome]:
        preparing = threading.Thread(target=self._prepare, args=(groups,))
        preparing.start()
        outcomes = super()._build(groups, jobs, stop)
        preparing.join()
        return outcomes

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

    def _build_job(self, group: Candidates, part: Part) -> Job:
        arguments = {
            "func": tvm.ir.save_json(group.func),
            "hints": [group.hints[place].to_dict() for place in part.places],
            "arch": self._arch.to_dict(),
            "path": str(part.library),
            "base": not part.places,
        }
        limit_s = self._timeouts[0] * max(1, len(part.places))
        return Job("tvmopt.measure.cuda_batch:build_batch", arguments, limit_s)

    def _run_job(self, group: Candidates, built: Sequence[Built], common: dict[str, Any]) -> Job:
        libraries = common["libraries"]
        arguments = {
            **common,
            "candidates": [[libraries.index(str(b.library)), b.index] for b in built],
            "seed": self._seed,
            "rounds": min(group.rounds, _ROUNDS),
        }
        return Job("tvmopt.measure.cuda_batch:run_batch", arguments, self._timeouts[1])

    def _has_died(self, timed: Sequence[Measured]) -> bool:
        return any("worker" in (m.error or "") for m in timed)

    def _believed(self, timed: list[Measured]) -> list[Measured]:
        """After a fault nothing that the process says counts, and so it is ended."""
        if not any("CUDA" in (m.error or "") for m in timed):
            return timed
        self._runner.close()
        return [
            m
            if m.error is not None
            else dataclasses.replace(m, latency_us=None, rounds=0, error="run: worker spoilt")
            for m in timed
        ]


def _chunks(hints: Sequence[Hint], parts: int, before: float = 0.0) -> list[list[int]]:
    """The places of ``hints``, dealt to at most ``parts`` lists that take about as long to build.

    The longest first, each to the list that has least so far.

    Args:
        hints: What is dealt.
        parts: Most lists.
        before: What the builder of the last list does before.
    """
    efforts = [family_of(hint).build_effort(hint) for hint in hints]
    chunks: list[list[int]] = [[] for _ in range(min(len(hints), parts))]
    have = [0.0] * len(chunks)
    if len(chunks) == parts:
        have[-1:] = [before]
    for place in sorted(range(len(hints)), key=lambda n: -efforts[n]):
        least = have.index(min(have))
        chunks[least].append(place)
        have[least] += efforts[place]
    return [chunk for chunk in chunks if chunk]
