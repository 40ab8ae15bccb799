"""The interface between the workflow and a tuning strategy.

A strategy takes the tasks of a lowered Relax module (every operator legalised and fused into
TensorIR), keyed by subgraph or by operator, and leaves what it learnt in a :class:`TuneResult`.
Building is a separate stage: it replays the strategy's database, and gives every function without a
record the default schedule.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tvm.target import Target

from tvmopt.device.cpu import CpuArch
from tvmopt.device.cuda import CudaArch
from tvmopt.remote import Board
from tvmopt.tune.database import DatabaseKey, canonical_target
from tvmopt.tune.tasks import Task

Progress = Callable[[int, int, str], None]
"""Called as ``progress(done, total, text)`` while a strategy works."""


@dataclasses.dataclass(frozen=True)
class TuneOptions:
    """What a strategy may spend.

    Attributes:
        trials: Most candidates to measure over all tasks.
        time_budget_s: Most seconds to tune for; 0 means no limit.
        threads: Threads a measured kernel runs with.
        topk: Most configurations of one function that ``fast`` measures.
        seed: Seed of every random choice.
        warm_start: Directory of an earlier tuning database to begin from, or None.
        earlier: Directories of databases to take over what fits from; others are passed over.
        board: Where to measure; None for this machine.
        granularity: How the tasks are keyed, which the database says.
        network_bytes: Bytes of the network's weights; 0 for those of the tasks. Between two calls
            of a task a network reads the weights of all others.
        rivals: Names of tasks that may take each other's place, so that their latencies must
            compare.
    """

    trials: int
    time_budget_s: float
    threads: int
    topk: int = 20
    seed: int = 0
    warm_start: Path | None = None
    earlier: tuple[Path, ...] = ()
    board: Board | None = None
    granularity: str = "subgraph"
    network_bytes: int = 0
    rivals: tuple[tuple[str, ...], ...] = ()

    def key(self, target: Target) -> DatabaseKey:
        """What a database of these options is good for."""
        return DatabaseKey(canonical_target(target), self.threads, granularity=self.granularity)


@dataclasses.dataclass(frozen=True)
class TaskResult:
    """One row of the per-task table.

    Attributes:
        name: Name of the fused function.
        shape: Shapes and types of its arguments, as text.
        weight: How often the network calls it.
        flops: Arithmetic operations of one call, as TVM estimates them.
        source: What serves the task: ``"database"``, ``"default:<rule>"`` or ``"none:<reason>"``.
        latency_us: Best measured latency of one call in microseconds; None when not measured.
        gflops: Arithmetic rate at that latency in GFLOP/s; None when not measured.
        trials: Candidates measured for this task, failures included.
        failures: Candidates that did not build, run or finish.
        granularity: What was measured: ``"subgraph"``, the function; ``"operator"``, its anchor.
    """

    name: str
    shape: str
    weight: int
    flops: float
    source: str
    latency_us: float | None
    gflops: float | None
    trials: int
    failures: int
    granularity: str = "subgraph"


@dataclasses.dataclass(frozen=True)
class TuneResult:
    """What a strategy did.

    Attributes:
        strategy: Name of the strategy.
        database_dir: Directory of the tuning database; None when the strategy keeps none.
        tasks: One row a task.
        trials: Candidates measured over all tasks, failures included.
        seconds: Wall time spent.
        log: One JSON-able record a measured candidate: ``elapsed_s``, ``task``, ``trial`` (0 is
            the default schedule, which is not counted as a trial), ``latency_us`` or None,
            ``error`` or None, ``best_total_us`` (weighted sum of the best of every task so far,
            None until every task has one).
    """

    strategy: str
    database_dir: Path | None
    tasks: tuple[TaskResult, ...]
    trials: int
    seconds: float
    log: tuple[dict[str, Any], ...]


class TuneStrategy(abc.ABC):
    """One way to find schedules. The tune stage calls :meth:`tune` once a run."""

    name: str

    @abc.abstractmethod
    def tune(
        self,
        tasks: Sequence[Task],
        target: Target,
        arch: CpuArch | CudaArch,
        options: TuneOptions,
        work_dir: Path,
        progress: Progress,
    ) -> TuneResult:
        """Tune every task that is to be tuned, writing only under ``work_dir``."""
