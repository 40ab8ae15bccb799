"""How far the fast tuner's choices are from the best of some hundred measured configurations.

1. Measure the model's favourites and a random sample of the rest, to find the best.
2. Tune as a user would.
3. Timings drift: measure the best of both, and the policy's first choice, once more, side by side.
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

# Share of the configurations that the model chooses; the others are drawn from the rest.
_MODELLED = 0.6
_BATCH = 30  # configurations in one library
# Of the measured ones, how many are measured again: the best of many noisy timings is only lucky.
_FINALISTS = 3
_REPEATS = 8  # of the last measurement; its lower quartile counts, as in tuning


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a task may spend.

    Attributes:
        configs: Most configurations to measure.
        topk: Configurations that the fast tuner measures.
        seconds: Seconds after which no more configurations are measured; 0 is no limit.
        seed: Seed of the sample and of the tuner.
    """

    configs: int = 500
    topk: int = 20
    seconds: float = 0.0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class RegretRow:
    """One task. Latencies are those of the last measurement, in microseconds.

    Attributes:
        name: Name of the task.
        kind: Kind of the task.
        space: Configurations that the policy knows.
        measured: Configurations measured to find the best.
        best_us: The fastest of all.
        first_us: The policy's first choice.
        tuned_us: The fast tuner's choice.
        configs: The configurations behind the three, by ``best``, ``first``, ``tuned``.
        failures: Why configurations failed, with counts.
        tuning_s: Seconds of the fast tuner.
        seconds: Seconds of everything.
        problem: Why there is no row; empty when there is one.
    """

    name: str
    kind: str
    space: int = 0
    measured: int = 0
    best_us: float = math.nan
    first_us: float = math.nan
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
        """Configurations that computed wrong numbers."""
        return sum(count for reason, count in self.failures.items() if "wrong result" in reason)

    @property
    def right(self) -> bool:
        """Whether there is a regret, and no configuration computed wrong numbers."""
        return not self.problem and not self.wrong

    @property
    def first(self) -> float:
        """Regret of the policy's first choice; 1 is none."""
        return self.first_us / self.best_us

    @property
    def tuned(self) -> float:
        """Regret of the fast tuner's choice; 1 is none."""
        return self.tuned_us / self.best_us


def measure(task: TuningTask, arch: Any, measurer: Measurer, settings: Settings) -> RegretRow:
    """The regret of one task; a row with a problem when there is none."""
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
    wanted = sample(hints, settings.configs, settings.seed)
    measured = sweep(task, wanted, measurer, lambda: deadline.expired)
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
    first = schedule_function(func, arch).hint
    if first is None or tuned.best is None:
        return dataclasses.replace(row, problem="no configuration works")
    leaders = sorted(
        (m for m in measured if m.latency_us is not None), key=lambda m: m.latency_us or 0.0
    )
    finalists = [first, tuned.best.hint, *(m.hint for m in leaders[:_FINALISTS])]
    latency = side_by_side(task, list(dict.fromkeys(finalists)), measurer)
    best = min(latency, key=lambda hint: latency[hint])
    return dataclasses.replace(
        row,
        best_us=latency[best],
        first_us=latency[first],
        tuned_us=latency[tuned.best.hint],
        configs={"best": str(best), "first": str(first), "tuned": str(tuned.best.hint)},
    )


def sample(ranked: Sequence[Hint], configs: int, seed: int) -> list[Hint]:
    """The first of a ranking and some of the rest, ``configs`` in all.

    The first batch are the model's favourites, so that losers are known early; the others come in
    no order, so that a measurement that is cut short is no less fair.
    """
    if len(ranked) <= configs:
        chosen = list(ranked)
    else:
        first = math.ceil(configs * _MODELLED)
        rest = random.Random(seed).sample(list(ranked[first:]), configs - first)
        chosen = [*ranked[:first], *rest]
    later = chosen[_BATCH:]
    random.Random(seed).shuffle(later)
    return [*chosen[:_BATCH], *later]


def sweep(
    task: TuningTask, hints: Sequence[Hint], measurer: Measurer, stop: Callable[[], bool]
) -> list[Measured]:
    """Measure ``hints`` in batches, two at a time so that two processes build."""
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


def side_by_side(task: TuningTask, hints: Sequence[Hint], measurer: Measurer) -> dict[Hint, float]:
    """Latency of each of a few configurations, in microseconds, over several turns.

    Each turn has buffers of its own, since where they lie matters.

    Raises:
        ValueError: When one of them fails, that has worked before.
    """
    turns = measurer.measure([_candidates(task, hints)])
    for _ in range(_REPEATS - 1):
        turns += measurer.measure([_candidates(task, (), turns[0])])
    latency: dict[Hint, list[float]] = {hint: [] for hint in hints}
    for m in (m for turn in turns for m in turn):
        if m.latency_us is None:
            raise ValueError(f"{m.hint} must work, but gave: {m.error}")
        latency[m.hint].append(m.latency_us)
    return {hint: sorted(found)[len(found) // 4] for hint, found in latency.items()}


def reasons(measured: Sequence[Measured]) -> dict[str, int]:
    """Why configurations failed, each counted once, numbers left out; most frequent first."""
    errors = {m.hint: m.error for m in measured if m.latency_us is None}
    counts = collections.Counter(
        "".join("#" if c.isdigit() else c for c in error or "not measured")
        for error in errors.values()
    )
    return dict(counts.most_common())


def table(rows: Sequence[RegretRow], topk: int) -> str:
    """Markdown table of the rows."""
    header = (
        "task", "kind", "space", "measured", "failed", "best us", "top-1 regret",
        f"best-of-{topk} regret", "tuning s", "s",
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
        f"{row.first:.3f}",
        f"{row.tuned:.3f}",
        f"{row.tuning_s:.1f}",
        f"{row.seconds:.0f}",
    ]


def means(rows: Sequence[RegretRow]) -> dict[str, dict[str, float | None]]:
    """Geometric means of both regrets over the rows that have them: of all, and by kind."""
    some = [row for row in rows if not row.problem]
    kinds = dict.fromkeys(row.kind for row in some)
    groups = {"all": some} | {kind: [r for r in some if r.kind == kind] for kind in kinds}
    return {
        name: {
            "first": geometric_mean(row.first for row in group),
            "tuned": geometric_mean(row.tuned for row in group),
        }
        for name, group in groups.items()
    }
