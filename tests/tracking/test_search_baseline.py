"""Trial zero: what is predicted of it, and what it does not do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tvmopt.errors import LimitError
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.search import baseline


def _layers(count: int, flops: float) -> list[Any]:
    return [SimpleNamespace(flops=flops / count) for _ in range(count)]


def test_the_prediction_grows_with_layers_and_work():
    assert baseline.predicted_s(_layers(50, 5e9)) == pytest.approx(2.0 + 5.0 + 11 * 2.0)
    assert baseline.predicted_s([SimpleNamespace(flops=None)]) == pytest.approx(2.1)


@pytest.fixture
def check(monkeypatch):
    """Return a function that checks a model of some FLOPs on a CPU, or on a GPU or a board."""

    def run(flops: float, budget_s: float, gpu: object = None, board: object = None) -> None:
        monkeypatch.setattr(baseline, "model_layers", lambda *_: _layers(50, flops))
        convert = SimpleNamespace(input_shapes="")
        request: Any = SimpleNamespace(
            target=SimpleNamespace(gpu=gpu), board=board, model=None, convert=convert
        )
        baseline.check_can_end(request, budget_s, Allowance())

    return run


def test_a_baseline_that_cannot_end_is_refused_in_one_line(check):
    check(5e9, 600.0)  # about 29 s of 36 s
    with pytest.raises(LimitError) as refused:
        check(10e9, 600.0)
    assert refused.value.failure_class == "timeout"
    assert str(refused.value) == (
        "untuned TVM is not measured: it would take about 51 s, but may take 36 s of the "
        "time_budget of 600 s; the search goes on without a baseline"
    )
    check(10e9, 1800.0)


def test_nothing_is_predicted_for_a_gpu_or_a_board(check):
    check(1e15, 600.0, gpu=object())
    check(1e15, 600.0, board=object())
