"""Regret of the top-1 and top-k configurations against the best of many measured configurations.

1. Measure the head of the cost model's ranking and a random sample of the rest.
2. Run the fast tuner with its usual settings.
3. Measure the best of both and the top-1 configuration again, interleaved, because timings drift.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import report
from benchmarks.interleave import geometric_mean
from benchmarks.tuning_tasks import TuningTask
from tvmopt.kernels.hint import Hint
from tvmopt.measure.measurer import Candidates, Measured, Measurer, best_of
from tvmopt.tune.budget import Deadline

# Share of the configurations from the head of the ranking; the others are drawn at random.
_RANKED_SHARE = 0.6
_BATCH = 30  # configurations in one library
# Configurations to measure again: the minimum of many noisy timings is biased.
_FINALISTS = 3
_REPEATS = 8  # rounds of the last measurement; the lower quartile counts, as in tuning


@dataclasses.dataclass(frozen=True)
class Settings:
    """Budget of one task.

    Attributes:
        configs: Most configurations to measure.
        topk: Configurations that the fast tuner measures.
        seconds: Time limit of measuring ``configs``; 0 is no limit.
        seed: Seed of the sample and of the tuner.
    """

    configs: int = 500
    topk: int = 20
    seconds: float = 0.0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class RegretRow:
    """Results of one task; latencies are from the last measurement, in microseconds.

    Attributes:
        name: Name of the task.
        kind: Kind of the task.
        space: Size of the search space.
        measured: Configurations measured to find the best.
        best_us: Latency of the best configuration.
        top1_us: Latency of the top-1 configuration of the cost model.
        tuned_us: Latency of the fast tuner's choice.
        configs: The three configurations, by ``best``, ``top-1``, ``tuned``.
        failures: Reasons for which configurations failed, with counts.
        tuning_s: Seconds of the fast tuner.
        seconds: Seconds of the whole task.
        problem: Error of the task; empty on success.
    """

    name: str
    kind: str
    space: int = 0
    measured: int = 0
    best_us: float = math.nan
    top1_us: float = math.nan
    tuned_us: float = math.nan
    configs: dict[str, str] = dataclasses.field(default_factory=dict)
    failures: dict[str, int] = dataclasses.field(default_factory=dict)
    tuning_s: float = 0.0
    seconds: float = 0.0
    problem: str = ""

    @property
    def failed(self) -> int:
        """Configurations without a latency."""
        return sum(self.failures.values())

    @property
    def wrong(self) -> int:
        """Configurations with a wrong result."""
        return sum(count for reason, count in self.failures.items() if "wrong result" in reason)

    @property
    def right(self) -> bool:
        """Whether the task ran and no configuration has a wrong result."""
        return not self.problem and not self.wrong

    @property
    def top1(self) -> float:
        """Regret of the top-1 configuration; 1 is optimal."""
        return self.top1_us / self.best_us

    @property
    def tuned(self) -> float:
        """Regret of the fast tuner's choice; 1 is optimal."""
        return self.tuned_us / self.best_us


def measure(task: TuningTask, arch: Any, measurer: Measurer, settings: Settings) -> RegretRow:
    """Measure the regret of one task; an error becomes a row with a problem."""
    row, start = RegretRow(task.name, task.kind), time.perf_counter()
    try:
        row = _measure(row, task, arch, measurer, settings)
    except Exception as error:  # one task must not cost the others their rows
        row = dataclasses.replace(row, problem=report.one_line(error))
    return dataclasses.replace(row, seconds=time.perf_counter() - start)


def _measure(
    row: RegretRow, task: TuningTask, arch: Any, measurer: Measurer, settings: Settings
) -> RegretRow:
    from tvmopt.kernels.cpu.reranker import Reranker
    from tvmopt.kernels.first_choice import schedule_function
    from tvmopt.kernels.policies import DefaultPolicy
    from tvmopt.tune.fast_search import TuningWorkload, search

    func = task.ours.func
    hints = DefaultPolicy(func, arch).emit_config(10**9)
    deadline = Deadline(settings.seconds)
    sampled = sample(hints, settings.configs, settings.seed)
    measured = sweep(task, sampled, measurer, lambda: deadline.expired)
    began = time.perf_counter()
    [tuned] = search(
        [TuningWorkload(row.name, func)],
        arch,
        measurer,
        Reranker(settings.seed),
        settings.topk,
        network_bytes=task.network_bytes,
    )
    row = dataclasses.replace(
        row,
        space=len(hints),
        measured=len(measured),
        failures=reasons([*measured, *tuned.measured]),
        tuning_s=time.perf_counter() - began,
    )
    top1 = schedule_function(func, arch).hint
    if top1 is None or tuned.best is None:
        return dataclasses.replace(row, problem="no configuration works")
    leaders = sorted(
        (m for m in measured if m.latency_us is not None), key=lambda m: m.latency_us or 0.0
    )
    finalists = [top1, tuned.best.hint, *(m.hint for m in leaders[:_FINALISTS])]
    latency = remeasure(task, list(dict.fromkeys(finalists)), measurer)
    best = min(latency, key=lambda hint: latency[hint])
    return dataclasses.replace(
        row,
        best_us=latency[best],
        top1_us=latency[top1],
        tuned_us=latency[tuned.best.hint],
        configs={"best": str(best), "top-1": str(top1), "tuned": str(tuned.best.hint)},
    )


def sample(ranked: Sequence[Hint], configs: int, seed: int) -> list[Hint]:
    """Choose ``configs`` of a ranking: its head and a random sample of the rest.

    The first batch holds the highest ranked configurations, so that later batches are compared
    with a good one. The remaining batches are shuffled, so that a time limit causes no bias.
    """
    if len(ranked) <= configs:
        chosen = list(ranked)
    else:
        head = math.ceil(configs * _RANKED_SHARE)
        rest = random.Random(seed).sample(list(ranked[head:]), configs - head)
        chosen = [*ranked[:head], *rest]
    later = chosen[_BATCH:]
    random.Random(seed).shuffle(later)
    return [*chosen[:_BATCH], *later]


def sweep(
    task: TuningTask, hints: Sequence[Hint], measurer: Measurer, stop: Callable[[], bool]
) -> list[Measured]:
    """Measure ``hints`` in batches, two at a time so that two processes build in parallel."""
    found: list[Measured] = []
    batches = [hints[i : i + _BATCH] for i in range(0, len(hints), _BATCH)]
    while batches and not stop():
        now, batches = batches[: 2 if found else 1], batches[2 if found else 1 :]
        best = [m for m in [best_of(found)] if m]
        groups = [_candidates(task, batch, best) for batch in now]
        for results in measurer.measure(groups, stop):
            found += results[len(best) :]
    return found


def _candidates(
    task: TuningTask, hints: Sequence[Hint], again: Sequence[Measured] = ()
) -> Candidates:
    return Candidates(task.ours.func, hints, again, weight_bytes=task.network_bytes)


def remeasure(task: TuningTask, hints: Sequence[Hint], measurer: Measurer) -> dict[Hint, float]:
    """Measure a few configurations in interleaved rounds; return microseconds of each.

    Each round allocates new buffers, because latency depends on their addresses.

    Raises:
        ValueError: When a configuration fails that has worked before.
    """
    rounds = measurer.measure([_candidates(task, hints)])
    for _ in range(_REPEATS - 1):
        rounds += measurer.measure([_candidates(task, (), rounds[0])])
    latency: dict[Hint, list[float]] = {hint: [] for hint in hints}
    for m in (m for results in rounds for m in results):
        if m.latency_us is None:
            raise ValueError(f"{m.hint} must work, but gave: {m.error}")
        latency[m.hint].append(m.latency_us)
    return {hint: sorted(found)[len(found) // 4] for hint, found in latency.items()}


def reasons(measured: Sequence[Measured]) -> dict[str, int]:
    """Count reasons of failure, one per configuration, digits masked; most frequent first."""
    errors = {m.hint: m.error for m in measured if m.latency_us is None}
    counts = collections.Counter(
        "".join("#" if c.isdigit() else c for c in error or "not measured")
        for error in errors.values()
    )
    return dict(counts.most_common())


def table(rows: Sequence[RegretRow], topk: int) -> str:
    """Return a Markdown table, one line per task."""
    header = (
        "task", "kind", "space", "measured", "failed", "best us", "top-1 regret",
        f"top-{topk} regret", "tuning s", "s",
    )  # fmt: skip
    return report.markdown(header, (_cells(row) for row in rows))


def _cells(row: RegretRow) -> list[str]:
    counts = [row.name, row.kind, str(row.space), str(row.measured)]
    failed = f"{row.failed}" + (f" ({row.wrong} WRONG)" if row.wrong else "")
    if row.problem:
        return [*counts, failed, f"FAILED: {row.problem[:120]}", *["-"] * 3, f"{row.seconds:.0f}"]
    return [
        *counts,
        failed,
        f"{row.best_us:.1f}",
        f"{row.top1:.3f}",
        f"{row.tuned:.3f}",
        f"{row.tuning_s:.1f}",
        f"{row.seconds:.0f}",
    ]


def means(rows: Sequence[RegretRow]) -> dict[str, dict[str, float | None]]:
    """Geometric means of both regrets over the tasks without an error: of all, and by kind."""
    some = [row for row in rows if not row.problem]
    kinds = dict.fromkeys(row.kind for row in some)
    groups = {"all": some} | {kind: [r for r in some if r.kind == kind] for kind in kinds}
    return {
        name: {
            "top-1": geometric_mean(row.top1 for row in group),
            "tuned": geometric_mean(row.tuned for row in group),
        }
        for name, group in groups.items()
    }
