"""Measure CPU candidates: one library per function; timing runs locally or on a board."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.target import Target

from tvmopt import host
from tvmopt.kernels.policies import family_of
from tvmopt.measure.hints import (
    Built,
    Candidates,
    HintMeasurer,
    Measured,
    Part,
    argument_types,
    base_library,
    constants,
)
from tvmopt.measure.workers import Job
from tvmopt.remote import Board
from tvmopt.remote.session import WAIT_S

_MOST_BUILDERS = 4
# Generous limits in seconds, because a board and its connection may be slow.
_BOARD_S, _BOARD_S_A_HINT = 120.0, 10.0


class CpuMeasurer(HintMeasurer):
    """Build and time CPU candidates.

    Args:
        target: Target to build for.
        threads: Number of threads that a candidate runs with.
        scratch: Directory for libraries and logs.
        seed: Seed of the random inputs.
        builders: Number of worker processes that build; 0 means one per core.
        build_timeout_s: Build timeout in seconds per candidate of a batch.
        run_timeout_s: Timeout in seconds for checking and timing a function's candidates.
        board: Board that checks and times; None for the local machine.
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
        super().__init__(builders or min(_MOST_BUILDERS, host.usable_cores()), threads, scratch)
        self._target = str(target)
        self._seed = seed
        self._timeouts = build_timeout_s, run_timeout_s
        self._board, self._threads = board, threads

    def race(
        self, rivals: Sequence[tuple[tirx.PrimFunc, Measured]], weight_bytes: int = 0
    ) -> list[float | None]:
        """Time alternative functions in interleaved rounds.

        Latencies measured at different times are not comparable within a few percent, because the
        machine's speed changes from second to second.

        Args:
            rivals: Each function with its best result of this measurer.
            weight_bytes: As in :class:`Candidates`.

        Returns:
            Latency of each function in microseconds; None where timing failed. All None on a board.
        """
        built = [(func, m.built) for func, m in rivals if m.built is not None]
        if self._board is not None or len(built) < len(rivals):
            return [None] * len(rivals)
        arguments = {
            "rivals": [
                {
                    "libraries": [str(b.base), str(b.library)],
                    "arguments": argument_types(func),
                    "constants": constants(func),
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

    def _parts(self, groups: Sequence[Candidates]) -> list[Part]:
        """Return one part per function, the slowest builds first for load balance."""
        new = [number for number, group in enumerate(groups) if group.hints]
        new.sort(key=lambda number: _effort(groups[number]), reverse=True)
        return [Part(n, range(len(groups[n].hints)), self._new_library()) for n in new]

    def _build_job(self, group: Candidates, part: Part) -> Job:
        arguments = {
            "func": tvm.ir.save_json(group.func),
            "hints": [hint.to_dict() for hint in group.hints],
            "target": self._target,
            "path": str(part.library),
            "base": base_library(group) is None,
        }
        limit_s = self._timeouts[0] * len(group.hints)
        return Job("tvmopt.measure.batch:build_batch", arguments, limit_s)

    def _run_job(self, group: Candidates, built: Sequence[Built], common: dict[str, Any]) -> Job:
        libraries = common["libraries"]
        arguments = {
            **common,
            "constants": constants(group.func),
            "candidates": [[libraries.index(str(b.library)), b.index, *b.packed] for b in built],
            "seed": self._seed,
            "rounds": group.rounds,
            "weight_bytes": group.weight_bytes,
        }
        if self._board is None:
            timeout_s = self._timeouts[1] + 0.5 * len(built)
            return Job("tvmopt.measure.batch:run_batch", arguments, timeout_s)
        session_s = _BOARD_S + _BOARD_S_A_HINT * len(built)
        arguments |= {
            "board": dataclasses.asdict(self._board),
            "threads": self._threads,
            "session_s": session_s,
        }
        return Job("tvmopt.measure.remote:run_batch", arguments, session_s + 2 * WAIT_S)

    def _has_died(self, timed: Sequence[Measured]) -> bool:
        reasons = {m.error for m in timed}
        return len(reasons) == 1 and reasons != {None}


def _effort(group: Candidates) -> int:
    """Estimate the relative build time of a group; Winograd transforms unroll into much code."""
    return round(sum(family_of(hint).build_effort(hint) for hint in group.hints))
