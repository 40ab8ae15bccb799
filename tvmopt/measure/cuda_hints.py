"""Measure GPU candidates: worker processes build kernels on all cores, and one process times them.

The candidates of one function are distributed over all builders, because CUDA compilation
dominates.
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
# Timing rounds that suffice to rank candidates: a GPU's speed varies less than a CPU's.
_ROUNDS = 20
# Build time of the comparison kernel, relative to a small kernel.
_BASE_EFFORT = 1.0


class CudaMeasurer(HintMeasurer):
    """Build and time GPU candidates.

    Args:
        arch: The first GPU of this machine.
        scratch: Directory for libraries and logs.
        seed: Seed of the random inputs.
        builders: Number of worker processes that build; 0 means one per core.
        build_timeout_s: Build timeout in seconds per candidate.
        run_timeout_s: Timeout in seconds for checking and timing one function.
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
        """Start the workers now, so that the first function does not pay for their start-up."""
        warm = Job("tvmopt.measure.cuda_batch:warm_up", {"arch": self._arch.to_dict()}, 120.0)
        self._builders.run([warm] * self._chunks)
        self._runner.run([warm])

    def _parts(self, groups: Sequence[Candidates]) -> list[Part]:
        parts = []
        for number, group in enumerate(groups):
            # The comparison kernel is built first; the last chunk follows on the same builder.
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
        """Return the measured latencies of alternative functions.

        The GPU's speed does not depend on host load, so no new timing is needed.
        """
        return [measured.latency_us for _, measured in rivals]

    def _prepare(self, groups: Sequence[Candidates]) -> None:
        """Create the inputs of the first function while the builders work."""
        first = next((group for group in groups if group.hints or group.again), None)
        if first is None:
            return
        arguments = {"arguments": argument_types(first.func), "seed": self._seed}
        job = Job("tvmopt.measure.cuda_batch:prepare", arguments, self._timeouts[1])
        self._runner.run([job])  # a failure shows again, with its error, when candidates run

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
        """Discard all results of a job with a CUDA fault and end its process."""
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
    """Distribute the indices of ``hints`` over at most ``parts`` lists of similar build time.

    Longest processing time first: each hint goes to the list with the least work so far.

    Args:
        hints: Hints to distribute.
        parts: Maximum number of lists.
        before: Work of the last list's builder before its hints, in units of build effort.
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
