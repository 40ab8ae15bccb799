"""The fast tuner's search: for each function measure the few configurations that look best.

Two rounds a function. The first takes the model's own favourites, the second what the re-ranker
makes of them. Functions go in groups, so that builds of one group fill all cores. Functions that
differ in their epilogue alone follow the heaviest of them: what was fastest there is tried first,
and little else.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from tvm import tirx

from tvmopt.arch.cpu import CpuArch
from tvmopt.measure.hints import Candidates, HintMeasurer, Measured, best_of
from tvmopt.policy import DefaultPolicy
from tvmopt.policy.ranked import Ranked
from tvmopt.policy.reranker import Reranker

# Share of a function's candidates that the model alone chooses.
_FIRST = 0.6
# Candidates the re-ranker looks at for each that is measured.
_POOL = 15
_GROUP = 6
# Shares of the network's modelled time from which on a function gets all, or half, of topk.
_HEAVY, _LIGHT = 0.01, 0.002


@dataclasses.dataclass(frozen=True)
class Workload:
    """A function to tune.

    Attributes:
        name: Its name in reports.
        func: The function, unscheduled.
        weight: Calls that the network makes to it.
    """

    name: str
    func: tirx.PrimFunc
    weight: int = 1


@dataclasses.dataclass
class Tuned:
    """What was measured of one function.

    Attributes:
        workload: The function.
        ranked: Its configurations in the model's order.
        signature: Equal for functions that differ in their epilogue alone.
        measured: Results in the order of measuring.
        at: When each was measured, by :func:`time.monotonic`.
    """

    workload: Workload
    ranked: list[Ranked]
    signature: str = ""
    measured: list[Measured] = dataclasses.field(default_factory=list)
    at: list[float] = dataclasses.field(default_factory=list)

    @property
    def best(self) -> Measured | None:
        """The fastest right result."""
        return best_of(self.measured)

    @property
    def first(self) -> Measured | None:
        """Result of the policy's first choice; None when it failed or was not measured."""
        if not self.ranked:
            return None
        wanted = self.ranked[0].hint
        return next((m for m in self.measured if m.hint == wanted and m.latency_us), None)

    def left(self) -> list[Ranked]:
        """Configurations not measured yet, in the model's order."""
        seen = {m.hint for m in self.measured}
        return [r for r in self.ranked if r.hint not in seen]


def search(
    workloads: Sequence[Workload],
    arch: CpuArch,
    measurer: HintMeasurer,
    reranker: Reranker,
    topk: int,
    stop: Callable[[], bool] = lambda: False,
    done: Callable[[Tuned], None] = lambda tuned: None,
) -> list[Tuned]:
    """Measure up to ``topk`` configurations of each workload.

    Args:
        workloads: Functions to tune.
        arch: The CPU.
        measurer: Builds, checks and times.
        reranker: Learns on the way.
        topk: Most configurations of one function; light ones get fewer.
        stop: Asked between steps; once true, what is left stays as it is.
        done: Called with each function when it is finished.

    Returns:
        One result a workload, in order.
    """
    states = []
    for workload in workloads:
        policy = DefaultPolicy(workload.func, arch)
        states.append(Tuned(workload, policy.ranked, policy.signature))
    budget = dict(zip(map(id, states), _budgets(states, topk), strict=True))
    heavy = sorted((s for s in states if s.ranked), key=lambda s: -_modelled(s))
    leaders: dict[str, Tuned] = {}
    for state in heavy:
        if state.signature:
            leaders.setdefault(state.signature, state)
    leading = [s for s in heavy if leaders.get(s.signature, s) is s]
    following = [s for s in heavy if leaders.get(s.signature, s) is not s]
    for group in _chunks(leading, _GROUP):
        for share in (_FIRST, 1.0):
            if stop():
                break
            batch: list[tuple[Tuned, list[Ranked]]] = []
            for state in group:
                wanted = max(1, round(budget[id(state)] * share)) - len(state.measured)
                left = state.left()
                if share == 1.0:
                    left = reranker.order(left[: _POOL * max(1, wanted)])
                if wanted > 0 and left:
                    batch.append((state, left[:wanted]))
            _measure(batch, measurer, reranker, stop)
        for state in group:
            if state.measured:
                done(state)
    for group in _chunks(following, _GROUP):
        if stop():
            break
        batch = [
            (state, _proven(state, leaders[state.signature])[: _followers(budget[id(state)])])
            for state in group
        ]
        _measure(batch, measurer, reranker, stop)
        for state in group:
            if state.measured:
                done(state)
    return states


def _followers(budget: int) -> int:
    """Configurations of a function whose like has been tuned."""
    return max(3, budget // 3)


def _proven(state: Tuned, leader: Tuned) -> list[Ranked]:
    """Configurations of ``state``: its first choice, then by what they came to elsewhere."""
    latency = {m.hint: m.latency_us for m in leader.measured if m.latency_us is not None}
    first, *others = state.ranked
    return [first, *sorted(others, key=lambda r: latency.get(r.hint, math.inf))]


def _measure(
    batch: list[tuple[Tuned, list[Ranked]]],
    measurer: HintMeasurer,
    reranker: Reranker,
    stop: Callable[[], bool],
) -> None:
    known = [[state.best] if state.best else [] for state, _ in batch]
    groups = [
        Candidates(state.workload.func, [*(m.hint for m in best), *(r.hint for r in chosen)])
        for (state, chosen), best in zip(batch, known, strict=True)
    ]
    measured = measurer.measure(groups, stop)
    for (state, chosen), best, timed in zip(batch, known, measured, strict=True):
        results = _as_fast_as_before(best[0], timed) if best else timed
        state.measured += results
        state.at += [time.monotonic()] * len(results)
        right = [
            (r, m.latency_us)
            for r, m in zip(chosen, results, strict=False)
            if m.latency_us is not None and r.facts
        ]
        reranker.add([r for r, _ in right], [us for _, us in right])


def _as_fast_as_before(best: Measured, timed: Sequence[Measured]) -> list[Measured]:
    """Latencies as they would have been when ``best`` was first measured.

    The machine's speed drifts between two batches, so ``best`` is measured again with the second,
    and what is compared is the ratio to it.

    Args:
        best: The best so far.
        timed: The new results; the first one is of the same configuration.
    """
    if not timed:
        return []
    again, *others = timed
    if again.latency_us is None or best.latency_us is None:
        return others
    factor = best.latency_us / again.latency_us
    return [
        m if m.latency_us is None else dataclasses.replace(m, latency_us=m.latency_us * factor)
        for m in others
    ]


def _budgets(states: Sequence[Tuned], topk: int) -> list[int]:
    """Configurations to measure of each function: fewer where little time can be won."""
    total = sum(_modelled(s) for s in states) or 1.0
    budgets = []
    for state in states:
        share = _modelled(state) / total
        part = topk if share >= _HEAVY else topk // 2 if share >= _LIGHT else topk // 4
        budgets.append(min(topk, max(part, 3)))
    return budgets


def _modelled(state: Tuned) -> float:
    return state.workload.weight * state.ranked[0].cycles if state.ranked else 0.0


def _chunks(states: Iterable[Tuned], size: int) -> Iterator[list[Tuned]]:
    chunk: list[Tuned] = []
    for state in states:
        chunk.append(state)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
