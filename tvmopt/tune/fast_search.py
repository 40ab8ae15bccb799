"""Search of the fast tuner: measure the most promising candidates of each function.

Each function gets two rounds. The first round takes the best candidates of the cost model from
every kernel family and times them briefly. The second round takes the top candidates of the learned
ranker, and the best candidate so far without prefetches. It times them accurately, together with
the best of the first round and the top-1 candidate of the cost model.

Functions are processed in groups, so that the builds of one group occupy all cores. Functions that
differ only in their epilogue follow the heaviest one: they get one round, which takes its fastest
configurations.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvm import tirx

from tvmopt.device.arch import Arch
from tvmopt.kernels.cpu.reranker import Reranker
from tvmopt.kernels.hint import Hint
from tvmopt.kernels.policies import family_of, policy_of
from tvmopt.kernels.ranked import Ranked, spread
from tvmopt.measure.interleave import ROUNDS
from tvmopt.measure.measurer import Candidates, Measured, Measurer, best_of, weight_bytes

# Share of a function's candidates that the first round measures.
_FIRST = 0.6
# Candidates that the learned ranker scores for each measured one.
_POOL = 30
# Functions that are built together: few at first, so that a short time leaves results of these.
_FIRST_GROUPS, _GROUP = (2, 4), 8
# Timing rounds of the first round, and how many of its results the second round repeats.
_ROUGH, _AGAIN = 10, 3
# The top-1 candidate is kept unless another one is faster by more than this fraction: two
# measurements of one configuration differ as much.
_TIE = 0.015
# Shares of the network's predicted time from which a function gets all, or half, of topk.
_HEAVY, _LIGHT = 0.01, 0.002
# Minimum number of candidates of a function, and the part of its budget that a follower gets.
_FEWEST, _FOLLOWER = 3, 5
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
        budget: Maximum number of candidates to measure.
        measured: Results in measuring order.
        at: Time of each measurement, from :func:`time.monotonic`.
        final: Hints timed in the last round. Their latencies come from interleaved rounds and are
            comparable.
    """

    workload: TuningWorkload
    ranked: list[Ranked[Any]]
    signature: str = ""
    budget: int = 0
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

    @property
    def unmeasured(self) -> list[Ranked[Any]]:
        """The unmeasured configurations, ordered by predicted cycles."""
        seen = {m.hint for m in self.measured}
        return [r for r in self.ranked if r.hint not in seen]

    @property
    def network_cycles(self) -> float:
        """Predicted cycles of all calls in the network."""
        return self.workload.weight * self.ranked[0].cycles if self.ranked else 0.0


@dataclasses.dataclass(frozen=True)
class _Batch:
    """Configurations of a function to measure next, and the number of timing rounds."""

    chosen: list[Ranked[Any]]
    rounds: int = ROUNDS


def search(
    workloads: Sequence[TuningWorkload],
    arch: Arch,
    measurer: Measurer,
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
    states = [_ranked(workload, arch) for workload in workloads]
    _set_budgets(states, topk)
    leaders, followers = _leaders_and_followers(states)
    leader_of = {leader.signature: leader for leader in leaders}

    def second_round(state: Tuned) -> _Batch:
        return _second_round(state, reranker)

    def only_round(state: Tuned) -> _Batch:
        return _only_round(state, leader_of[state.signature])

    def measure(group: Sequence[Tuned], *rounds: Callable[[Tuned], _Batch]) -> None:
        for choose in rounds:
            if not stop():
                batches = [(state, choose(state)) for state in group]
                _measure(batches, measurer, reranker, stop, network_bytes)
        for state in group:
            if state.measured:
                done(state)

    for group in _groups(leaders):
        measure(group, _first_round, second_round)
    for group in _groups(followers):
        measure(group, only_round)
    return states


def _ranked(workload: TuningWorkload, arch: Arch) -> Tuned:
    policy = policy_of(workload.func, arch)
    return Tuned(workload, list(policy.ranked), policy.signature)


def _set_budgets(states: Sequence[Tuned], topk: int) -> None:
    """Set the candidate budget of each function; a small share of the time gets few."""
    total = sum(state.network_cycles for state in states) or 1.0
    for state in states:
        share = state.network_cycles / total
        part = topk if share >= _HEAVY else topk // 2 if share >= _LIGHT else topk // 4
        if state.ranked:
            part = round(part * family_of(state.ranked[0].hint).budget)
        part = round(part * state.workload.effort)
        state.budget = min(topk, max(part, _FEWEST))


def _leaders_and_followers(states: Sequence[Tuned]) -> tuple[list[Tuned], list[Tuned]]:
    """Return the functions that match a family, heaviest first, in two lists.

    The leader of several functions with equal signature is the heaviest one; the others follow.
    """
    leaders: list[Tuned] = []
    followers: list[Tuned] = []
    seen: set[str] = set()
    for state in sorted((s for s in states if s.ranked), key=lambda s: -s.network_cycles):
        (followers if state.signature in seen else leaders).append(state)
        seen |= {state.signature} - {""}
    return leaders, followers


def _groups(states: Sequence[Tuned]) -> Iterator[Sequence[Tuned]]:
    sizes = itertools.chain(_FIRST_GROUPS, itertools.repeat(_GROUP))
    left = iter(states)
    while group := list(itertools.islice(left, next(sizes))):
        yield group


def _first_round(state: Tuned) -> _Batch:
    """Choose the best candidates of the cost model."""
    most = min(state.budget, len(state.ranked))
    count = max(1, round(_FIRST * most))
    rounds = ROUNDS if count >= most else _ROUGH
    return _Batch(spread(state.unmeasured, count), rounds)


def _second_round(state: Tuned, reranker: Reranker) -> _Batch:
    """Choose the best without prefetches, then the best candidates of the learned ranker."""
    count = min(state.budget, len(state.ranked)) - len(state.measured)
    if count <= 0:
        return _Batch([])
    learned = reranker.order(state.unmeasured[: _POOL * count])
    return _Batch([*_without_prefetch(state), *learned][:count])


def _only_round(state: Tuned, leader: Tuned) -> _Batch:
    """Choose top-1, then the leader's fastest configurations."""
    latency = {m.hint: m.latency_us for m in leader.measured if m.latency_us is not None}
    first, *others = state.ranked
    others.sort(key=lambda r: latency.get(r.hint, math.inf))
    return _Batch([first, *others][: max(_FEWEST, state.budget // _FOLLOWER)])


def _without_prefetch(state: Tuned) -> list[Ranked[Any]]:
    """Add the best candidate without prefetches, which cost a little when weights are cached."""
    best = best_of(state.measured)
    hint = best and best.hint.without_prefetch()
    if best is None or hint is None or any(r.hint == hint for r in state.ranked):
        return []
    like = next(r for r in state.ranked if r.hint == best.hint)
    state.ranked.append(dataclasses.replace(like, hint=hint))
    return state.ranked[-1:]


def _measure(
    batches: Sequence[tuple[Tuned, _Batch]],
    measurer: Measurer,
    reranker: Reranker,
    stop: Callable[[], bool],
    network_bytes: int,
) -> None:
    """Measure a batch of each function, and train the learned ranker with the results."""
    batches = [(state, batch) for state, batch in batches if batch.chosen]
    groups = [
        Candidates(
            state.workload.func,
            [r.hint for r in batch.chosen],
            _to_compare(state),
            batch.rounds,
            network_bytes,
        )
        for state, batch in batches
    ]
    measured = measurer.measure(groups, stop)
    for (state, batch), group, timed in zip(batches, groups, measured, strict=True):
        if not timed:
            continue
        results = _as_fast_as_before(group.again, timed)
        again = {m.hint: m for m in results[: len(group.again)]}
        new = results[len(group.again) :]
        state.measured = [again.get(m.hint, m) for m in state.measured] + new
        state.at += [time.monotonic()] * len(new)
        state.final = {m.hint for m in results}
        right = [
            (r, m.latency_us)
            for r, m in zip(batch.chosen, new, strict=True)
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
