"""The search itself, with a measurer that is told what to find."""

from __future__ import annotations

import zlib

import pytest
from tvm import relax, tirx

from tvmopt.measure.hints import Candidates, Measured
from tvmopt.policy.reranker import Reranker
from tvmopt.schedule import Hint
from tvmopt.transform.lower import lower
from tvmopt.tune.fast_search import Workload, search

from .models import ARCH, TARGET


class FakeMeasurer:
    """Latencies made of the configuration's name, on a machine that slows down batch by batch.

    Args:
        slower: How many times slower each batch is than the one before.
    """

    def __init__(self, slower: float = 1.0) -> None:
        self._slower = slower
        self.batches: list[list[Hint]] = []

    def latency(self, hint: Hint) -> float:
        return 100.0 + zlib.crc32(hint.config_id.encode()) % 100

    def measure(self, groups: list[Candidates], stop: object = None) -> list[list[Measured]]:
        speed = self._slower ** len(self.batches)
        self.batches += [list(group.hints) for group in groups]
        return [[Measured(h, self.latency(h) * speed, None, 3) for h in g.hints] for g in groups]


@pytest.fixture(scope="module")
def workload() -> Workload:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64, 128), "float32"))
    w = relax.Var("w", relax.TensorType((128, 256), "float32"))
    with builder.function("main", [x, w], {"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, w))
        builder.emit_func_output(out)
    mod = lower(builder.get(), TARGET)
    [func] = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return Workload("matmul", func)


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


def test_the_second_batch_measures_the_best_of_the_first_again(workload) -> None:
    measurer = FakeMeasurer()
    search([workload], ARCH, measurer, Reranker(0), topk=10)
    first, second = measurer.batches
    assert second[0] == min(first, key=measurer.latency)
    assert not set(first) & set(second[1:])
