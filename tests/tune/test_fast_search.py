"""Tests of the search of the fast tuner, with a fake measurer."""

from __future__ import annotations

import dataclasses
import zlib

import pytest
from tvm import relax, tirx

from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.reranker import Reranker
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.measure.interleave import ROUNDS
from tvmopt.measure.measurer import Candidates, Measured
from tvmopt.transform.lower import lower
from tvmopt.tune.fast_search import TuningWorkload, search

from .models import ARCH, TARGET


class FakeMeasurer:
    """Fake latencies, hashed from the configuration, on a machine that slows down per batch.

    Args:
        slower: Slow-down factor of each batch over the previous one.
    """

    def __init__(self, slower: float = 1.0) -> None:
        self._slower = slower
        self.batches: list[list[CpuHint]] = []
        self.rounds: list[int] = []

    def latency(self, hint: CpuHint) -> float:
        # Steps of 2 %: what is nearer is a tie, and there top-1 stands.
        return 100.0 * 1.02 ** (zlib.crc32(hint.config_id.encode()) % 1000)

    def measure(self, groups: list[Candidates], stop: object = None) -> list[list[Measured]]:
        speed = self._slower ** len(self.batches)
        timed = [[*(m.hint for m in group.again), *group.hints] for group in groups]
        self.batches += timed
        self.rounds += [group.rounds for group in groups]
        return [[Measured(h, self.latency(h) * speed, None, 3) for h in hints] for hints in timed]


@pytest.fixture(scope="module")
def workload() -> TuningWorkload:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64, 128), "float32"))
    w = relax.Var("w", relax.TensorType((128, 256), "float32"))
    with builder.function("main", [x, w], {"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, w))
        builder.emit_func_output(out)
    mod = lower(builder.get(), TARGET)
    [func] = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return TuningWorkload("matmul", func)


@pytest.mark.parametrize("slower", [1.0, 3.0, 1 / 3])
def test_the_best_is_found_while_the_machine_changes_its_speed(workload, slower) -> None:
    measurer = FakeMeasurer(slower)
    [tuned] = search([workload], ARCH, measurer, Reranker(0), topk=10)
    assert len(measurer.batches) == 2
    assert len({m.hint for m in tuned.measured}) == len(tuned.measured) == 10
    assert tuned.best is not None
    assert tuned.best.hint == min((m.hint for m in tuned.measured), key=measurer.latency)
    for measured in tuned.measured:
        assert measured.latency_us == pytest.approx(measurer.latency(measured.hint))


def test_the_second_batch_times_the_best_of_the_first_again(workload) -> None:
    measurer = FakeMeasurer()
    [tuned] = search([workload], ARCH, measurer, Reranker(0), topk=10)
    first, second = measurer.batches
    assert measurer.rounds[0] < measurer.rounds[1]
    best = sorted(first, key=measurer.latency)[:3]
    again = best if first[0] in best else [*best, first[0]]
    assert first[0] == tuned.ranked[0].hint
    assert second[: len(again)] == again
    assert len(first) + len(second) - len(again) == 10
    assert not set(first) & set(second[len(again) :])


def test_the_best_of_the_first_round_is_tried_without_its_prefetches(workload) -> None:
    measurer = FakeMeasurer()
    measurer.latency = lambda h: (
        FakeMeasurer.latency(measurer, h) * (1e-9 if getattr(h, "prefetch_bytes", 0) else 1.0)
    )
    [tuned] = search([workload], ARCH, measurer, Reranker(0), topk=10)
    first, second = measurer.batches
    best = min(first, key=measurer.latency)
    assert best.prefetch_bytes > 0
    assert dataclasses.replace(best, prefetch_bytes=0) in second
    assert len(tuned.measured) == 10


def test_top_1_stands_unless_another_is_clearly_faster(workload) -> None:
    measurer = FakeMeasurer()
    ranked = DefaultPolicy(workload.func, ARCH).emit_config(1)
    for us, stands in ((101.0, True), (103.0, False)):
        measurer.latency = lambda hint, us=us: us if hint == ranked[0] else 100.0
        [tuned] = search([workload], ARCH, measurer, Reranker(0), topk=10)
        assert tuned.best is not None
        assert (tuned.best.hint == ranked[0]) is stands


def test_one_that_was_fast_only_in_the_first_round_is_not_taken(workload) -> None:
    """The first candidate is timed at half of its latency once, as may happen by luck."""
    measurer = FakeMeasurer()
    lucky: list[CpuHint] = []

    def latency(hint: CpuHint) -> float:
        if not lucky:
            lucky.append(hint)
            return 50.0
        return FakeMeasurer.latency(measurer, hint) + 200.0 * (hint in lucky)

    measurer.latency = latency
    [tuned] = search([workload], ARCH, measurer, Reranker(0), topk=10)
    assert tuned.best is not None
    assert tuned.best.hint not in lucky


def test_a_last_round_in_which_all_fails_leaves_what_was_found(workload) -> None:
    measurer = FakeMeasurer()
    whole = measurer.measure

    def fail_later(groups, stop=None):
        if not measurer.batches:
            return whole(groups, stop)
        return [
            [Measured(h, None, "run: gone") for h in (*(m.hint for m in g.again), *g.hints)]
            for g in groups
        ]

    measurer.measure = fail_later
    [tuned] = search([workload], ARCH, measurer, Reranker(0), topk=10)
    assert tuned.best is not None
    assert tuned.best.latency_us is not None


def test_a_space_that_topk_exhausts_is_timed_carefully_at_once(workload) -> None:
    measurer = FakeMeasurer()
    [tuned] = search([workload], ARCH, measurer, Reranker(0), topk=1)
    assert [len(batch) for batch in measurer.batches] == [1]
    assert measurer.rounds == [ROUNDS]
    assert tuned.best is not None
