"""Search of the fast tuner: measure the most promising candidates of each function.

Each function gets two rounds. The first round takes the best candidates of the cost model from
every kernel family and times them briefly. The second round takes the top candidates of the learned
ranker, and the best candidate so far without prefetches. It times them accurately, together with
the best of the first round and the top-1 candidate of the cost model.

Functions are processed in groups, so that the builds of one group occupy all cores. Functions that
differ only in their epilogue follow the heaviest one: they measure its fastest configurations and
few others.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tvm import tirx

from tvmopt.device.cpu import CpuArch
from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cpu.reranker import Reranker
from tvmopt.kernels.hint import Hint
from tvmopt.kernels.policies import family_of, policy_of
from tvmopt.kernels.ranked import Ranked, spread
from tvmopt.measure.batch import ROUNDS
from tvmopt.measure.hints import Candidates, HintMeasurer, Measured, best_of, weight_bytes

# Share of a function's candidates that the cost model alone selects.
_FIRST = 0.6
# Candidates that the learned ranker scores for each measured one.
_POOL = 30
_GROUP = 8
# First round of search: number of timing rounds, and how many results the second round repeats.
_ROUGH, _AGAIN = 10, 3
# The top-1 candidate is kept unless another one is faster by more than this fraction: two
# measurements of one configuration differ as much.
_TIE = 0.015
# Shares of the network's predicted time from which a function gets all, or half, of topk.
_HEAVY, _LIGHT = 0.01, 0.002
# Number of results kept besides the best.
_RUNNERS_UP = 4


@dataclasses.dataclass(frozen=True)
class TuningWorkload:
    """A function to tune.

    Attributes:
        name: Name in reports.
        func: The unscheduled function.
        weight: Number of calls in the network.
        effort: Fraction of its candidate budget that is used.
    """

    name: str
    func: tirx.PrimFunc
    weight: int = 1
    effort: float = 1.0


@dataclasses.dataclass
class Tuned:
    """Measurements of one function.

    Attributes:
        workload: The function.
        ranked: Its configurations, ordered by predicted cycles.
        signature: Equal for functions that differ only in their epilogue.
        measured: Results in measuring order.
        at: Time of each measurement, from :func:`time.monotonic`.
        final: Hints timed in the last round. Their latencies come from interleaved rounds and are
            comparable.
    """

    workload: TuningWorkload
    ranked: list[Ranked[Any]]
    signature: str = ""
    measured: list[Measured] = dataclasses.field(default_factory=list)
    at: list[float] = dataclasses.field(default_factory=list)
    final: set[Hint] = dataclasses.field(default_factory=set)

    @property
    def best(self) -> Measured | None:
        """The fastest correct result, or the top-1 candidate when that one is equally fast."""
        final = [m for m in self.measured if m.hint in self.final]
        best = best_of(final) or best_of(self.measured)
        first = self.first
        if best is None or first is None or not {best.hint, first.hint} <= self.final:
            return best
        assert best.latency_us is not None and first.latency_us is not None
        return first if first.latency_us <= best.latency_us * (1 + _TIE) else best

    @property
    def first(self) -> Measured | None:
        """Result of the top-1 candidate; None when it failed or was not measured."""
        if not self.ranked:
            return None
        wanted = self.ranked[0].hint
        return next((m for m in self.measured if m.hint == wanted and m.latency_us), None)

    @property
    def runners_up(self) -> list[Measured]:
        """The fastest correct results after the best."""
        best = self.best
        right = [m for m in self.measured if m.latency_us is not None and m is not best]
        return sorted(right, key=lambda m: m.latency_us or math.inf)[:_RUNNERS_UP]

    def left(self) -> list[Ranked[Any]]:
        """Return the unmeasured configurations, ordered by predicted cycles."""
        seen = {m.hint for m in self.measured}
        return [r for r in self.ranked if r.hint not in seen]


def search(
    workloads: Sequence[TuningWorkload],
    arch: CpuArch | CudaArch,
    measurer: HintMeasurer,
    reranker: Reranker,
    topk: int,
    stop: Callable[[], bool] = lambda: False,
    done: Callable[[Tuned], None] = lambda tuned: None,
    network_bytes: int = 0,
) -> list[Tuned]:
    """Measure up to ``topk`` candidates of each workload.

    Args:
        workloads: Functions to tune.
        arch: Device to tune for.
        measurer: Builds, checks and times candidates.
        reranker: Learned ranker, trained with every measurement.
        topk: Maximum number of candidates of one function. Functions with a small share of the
            time, and functions that build slowly, get fewer.
        stop: Polled between steps; once true, the search ends with the results so far.
        done: Called with each finished function.
        network_bytes: Size of the network's weights in bytes; by default the sum over
            ``workloads``.

    Returns:
        One result per workload, in order.
    """
    network_bytes = network_bytes or sum(w.weight * weight_bytes(w.func) for w in workloads)
    states = []
    for workload in workloads:
        policy = policy_of(workload.func, arch)
        states.append(Tuned(workload, list(policy.ranked), policy.signature))
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
            batch: list[_Try] = []
            for state in group:
                most = min(budget[id(state)], len(state.ranked))
                wanted = max(1, round(most * share)) - len(state.measured)
                left = state.left()
                if share == 1.0:
                    left = [*_twin(state), *reranker.order(left[: _POOL * max(1, wanted)])]
                else:
                    left = spread(left, wanted)
                if wanted > 0 and left:
                    is_last = len(state.measured) + wanted >= most
                    batch.append(_Try(state, left[:wanted], ROUNDS if is_last else _ROUGH))
            _measure(batch, measurer, reranker, stop, network_bytes)
        for state in group:
            if state.measured:
                done(state)
    for group in _chunks(following, _GROUP):
        if stop():
            break
        batch = [
            _Try(state, _proven(state, leaders[state.signature])[: _followers(budget[id(state)])])
            for state in group
        ]
        _measure(batch, measurer, reranker, stop, network_bytes)
        for state in group:
            if state.measured:
                done(state)
    return states


def _twin(state: Tuned) -> list[Ranked[Any]]:
    """Return the best candidate without prefetches, which cost a little when weights are cached."""
    best = best_of(state.measured)
    hint: Any = None if best is None else best.hint
    if not getattr(hint, "prefetch_bytes", 0):
        return []
    like = next(r for r in state.ranked if r.hint == hint)
    twin = dataclasses.replace(like, hint=dataclasses.replace(hint, prefetch_bytes=0))
    if any(r.hint == twin.hint for r in state.ranked):
        return []
    state.ranked.append(twin)
    return [twin]


def _followers(budget: int) -> int:
    """Return the candidate budget of a function whose leader has been tuned."""
    return max(3, budget // 5)


def _proven(state: Tuned, leader: Tuned) -> list[Ranked[Any]]:
    """Return the configurations of ``state``: top-1 first, then by the leader's latency."""
    latency = {m.hint: m.latency_us for m in leader.measured if m.latency_us is not None}
    first, *others = state.ranked
    return [first, *sorted(others, key=lambda r: latency.get(r.hint, math.inf))]


@dataclasses.dataclass(frozen=True)
class _Try:
    """Configurations of a function to measure next, and the number of timing rounds."""

    state: Tuned
    chosen: list[Ranked[Any]]
    rounds: int = ROUNDS


def _measure(
    batch: Sequence[_Try],
    measurer: HintMeasurer,
    reranker: Reranker,
    stop: Callable[[], bool],
    network_bytes: int,
) -> None:
    groups = [
        Candidates(
            t.state.workload.func,
            [r.hint for r in t.chosen],
            _to_compare(t.state),
            t.rounds,
            network_bytes,
        )
        for t in batch
    ]
    measured = measurer.measure(groups, stop)
    for tried, group, timed in zip(batch, groups, measured, strict=True):
        if not timed:
            continue
        state = tried.state
        results = _as_fast_as_before(group.again, timed)
        again = {m.hint: m for m in results[: len(group.again)]}
        new = results[len(group.again) :]
        state.measured = [again.get(m.hint, m) for m in state.measured] + new
        state.at += [time.monotonic()] * len(new)
        state.final = {m.hint for m in results}
        right = [
            (r, m.latency_us)
            for r, m in zip(tried.chosen, new, strict=True)
            if m.latency_us is not None and r.facts
        ]
        reranker.add([r for r, _ in right], [us for _, us in right])


def _to_compare(state: Tuned) -> list[Measured]:
    """Return the fastest results of an earlier round, together with the top-1 candidate."""
    right = [m for m in state.measured if m.latency_us is not None]
    fastest = sorted(right, key=lambda m: m.latency_us or 0.0)[:_AGAIN]
    first = state.first
    return fastest if first is None or first in fastest else [*fastest, first]


def _as_fast_as_before(before: Sequence[Measured], timed: Sequence[Measured]) -> list[Measured]:
    """Scale new latencies to the machine speed of the earlier round.

    The machine's speed drifts between two rounds. The scale factor is the median ratio over the
    configurations timed in both rounds.

    Args:
        before: Results of the earlier round.
        timed: New results; the configurations of ``before`` come first.
    """
    ratios = [
        old.latency_us / new.latency_us
        for old, new in zip(before, timed, strict=False)
        if old.latency_us and new.latency_us
    ]
    if not ratios:
        return list(timed)
    factor = statistics.median(ratios)
    return [
        m if m.latency_us is None else dataclasses.replace(m, latency_us=m.latency_us * factor)
        for m in timed
    ]


def _budgets(states: Sequence[Tuned], topk: int) -> list[int]:
    """Return the candidate budget of each function; a small share of the time gets few."""
    total = sum(_modelled(s) for s in states) or 1.0
    budgets = []
    for state in states:
        share = _modelled(state) / total
        part = topk if share >= _HEAVY else topk // 2 if share >= _LIGHT else topk // 4
        if state.ranked:
            part = round(part * family_of(state.ranked[0].hint).budget)
        part = round(part * state.workload.effort)
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
