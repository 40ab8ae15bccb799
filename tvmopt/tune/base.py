"""The interface of a tuning strategy.

A strategy takes the tasks of a lowered Relax module: every operator is legalized and fused into
TensorIR functions. Tasks are keyed by subgraph or by anchor operator. The strategy returns a
:class:`TuneResult`. The build stage is separate: it applies the tuning records, and gives the
default schedule to every function without a record.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm.target import Target

from tvmopt.device.arch import Arch
from tvmopt.errors import ConfigError, EnvironmentSetupError
from tvmopt.remote import Board
from tvmopt.tune.database import DatabaseKey, canonical_target
from tvmopt.tune.tasks import Task

Progress = Callable[[int, int, str], None]
"""Called as ``progress(done, total, text)`` while a strategy works."""


@dataclasses.dataclass(frozen=True)
class TuneOptions:
    """Tuning budget and settings.

    Attributes:
        trials: Maximum number of candidates measured over all tasks.
        time_budget_s: Maximum tuning time in seconds; 0 means no limit.
        threads: Number of threads that a measured kernel runs with.
        topk: Maximum number of candidates that ``fast`` measures for one task.
        seed: Random seed.
        warm_start: Directory of an earlier tuning database to start from, or None.
        earlier: Directories of further databases. Their records are copied when the key matches;
            other databases are skipped.
        board: Remote board that measures; None for the local machine.
        granularity: Task key, ``"subgraph"`` or ``"operator"``; part of the database key.
        network_bytes: Size of the network's weights in bytes; 0 means the sum over the tasks.
            Timing reads cold weights accordingly: in a network, the other layers evict a
            layer's weights from the caches between two calls.
        alternatives: Groups of names of alternative tasks. Tasks of one group are timed again in
            interleaved rounds, so that their latencies are comparable.
        sources: Known ``source`` of the default schedule by task name; ``default`` takes it over.
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
    alternatives: tuple[tuple[str, ...], ...] = ()
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def key(self, target: Target) -> DatabaseKey:
        """Return the key of a database tuned with these options."""
        return DatabaseKey(canonical_target(target), self.threads, granularity=self.granularity)

    def check(self, strategy: str) -> None:
        """Raise unless the options are in range and the learned rankers' package is installed.

        Args:
            strategy: Name of the strategy, for the error.

        Raises:
            ConfigError: When an option is out of range.
            EnvironmentSetupError: When scikit-learn is missing.
        """
        for name, least in (("trials", 0), ("time_budget_s", 0), ("threads", 1), ("topk", 1),
                            ("seed", 0)):  # fmt: skip
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name} must be at least {least}, but got {value}")
        if importlib.util.find_spec("sklearn") is None:
            raise EnvironmentSetupError(
                f"strategy {strategy!r} needs scikit-learn, but it is not installed; "
                "run: pip install scikit-learn"
            )


@dataclasses.dataclass(frozen=True)
class TaskResult:
    """One row of the per-task table.

    Attributes:
        name: Name of the fused function.
        shape: Shapes and dtypes of its arguments, as text.
        weight: Number of calls in the network.
        flops: FLOPs of one call, as TVM estimates them.
        source: Where the schedule comes from: ``"database"``, ``"default:<rule>"`` or
            ``"none:<reason>"``.
        latency_us: Best measured latency of one call in microseconds; None when not measured.
        gflops: Throughput at that latency in GFLOP/s; None when not measured.
        trials: Candidates measured for this task, including failures.
        failures: Candidates that failed to build, to run, or timed out.
        granularity: What is measured: ``"subgraph"``, the fused function; ``"operator"``, its
            anchor operator.
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
    """Result of a tuning run.

    Attributes:
        strategy: Name of the strategy.
        database_dir: Directory of the tuning database; None when the strategy writes none.
        tasks: One row per task.
        trials: Candidates measured over all tasks, including failures.
        seconds: Wall time.
        log: One JSON-serialisable record per measured candidate: ``elapsed_s``, ``task``,
            ``trial`` (0 is the default schedule, which does not count as a trial),
            ``latency_us`` or None, ``error`` or None, ``best_total_us`` (weighted sum of the
            best latencies so far; None until every task has one).
    """

    strategy: str
    database_dir: Path | None
    tasks: tuple[TaskResult, ...]
    trials: int
    seconds: float
    log: tuple[dict[str, Any], ...]


def without_trials(strategy: str, rows: Iterable[TaskResult], start: float) -> TuneResult:
    """Return the result of a strategy that measures nothing and keeps no database.

    Args:
        strategy: Its name.
        rows: One row per task.
        start: When it began, by :func:`time.perf_counter`.
    """
    seconds = time.perf_counter() - start
    return TuneResult(strategy, None, tuple(rows), trials=0, seconds=seconds, log=())


class TuneStrategy(abc.ABC):
    """A tuning strategy. The tune stage calls :meth:`tune` once per run."""

    name: str

    @abc.abstractmethod
    def tune(
        self,
        tasks: Sequence[Task],
        target: Target,
        arch: Arch,
        options: TuneOptions,
        work_dir: Path,
        progress: Progress,
    ) -> TuneResult:
        """Tune every measurable task. Write only under ``work_dir``."""
