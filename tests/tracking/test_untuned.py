"""Untuned TVM: what is predicted of it, and when it is not measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tvmopt.errors import BuildError, LimitError
from tvmopt.search.shares import BASELINE
from tvmopt.stages.launch import UNLIMITED
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.pipeline import untuned
from tvmopt.tracking.pipeline.request import Request, make_request
from tvmopt.tracking.pipeline.steps import StagePipeline
from tvmopt.tracking.store.stage_run import StageOutput

MODEL = Path(__file__).parents[2] / "tvmopt" / "examples" / "digits_cnn.onnx"


def _layers(count: int, flops: float) -> list[Any]:
    return [SimpleNamespace(flops=flops / count) for _ in range(count)]


def test_the_prediction_grows_with_layers_and_work():
    assert untuned.predicted_s(_layers(50, 5e9)) == pytest.approx(2.0 + 5.0 + 11 * 2.0)
    assert untuned.predicted_s([SimpleNamespace(flops=None)]) == pytest.approx(2.1)


@pytest.fixture
def check(monkeypatch):
    """Return a function that checks a model of some FLOPs on a CPU, or on a GPU or a board."""

    def run(flops: float, budget_s: float, gpu: object = None, board: object = None) -> None:
        monkeypatch.setattr(untuned, "model_layers", lambda *_: _layers(50, flops))
        convert = SimpleNamespace(input_shapes="")
        request: Any = SimpleNamespace(
            target=SimpleNamespace(gpu=gpu), board=board, model=None, convert=convert
        )
        untuned.check_can_end(request, BASELINE, budget_s, Allowance(), "search")

    return run


def test_a_baseline_that_cannot_end_is_refused_in_one_line(check):
    check(5e9, 600.0)  # about 29 s of 36 s
    with pytest.raises(LimitError) as refused:
        check(10e9, 600.0)
    assert refused.value.failure_class == "timeout"
    assert str(refused.value) == (
        "untuned TVM would take about 51 s, but may take 36 s of the "
        "time_budget of 600 s; the search goes on without a baseline"
    )
    check(10e9, 1800.0)


def test_nothing_is_predicted_for_a_gpu_or_a_board(check):
    check(1e15, 600.0, gpu=object())
    check(1e15, 600.0, board=object())


def _request(target: str = "host", **asked: object) -> Request:
    return make_request(MODEL, input_shapes="image:1x1x8x8", target=target, threads=1, **asked)


@pytest.fixture
def logged(monkeypatch) -> dict[str, str]:
    """Return the tags that are logged."""
    found: dict[str, str] = {}
    monkeypatch.setattr(untuned, "log_tags", lambda client, run, tags: found.update(tags))
    return found


def _pipeline(request: Request, allowance: Allowance = UNLIMITED) -> StagePipeline:
    return StagePipeline(_Session(allow=lambda: allowance), request)


@dataclasses.dataclass
class _Session:
    allow: Any
    client: Any = None
    run_id: str = "r"


def test_an_untuned_build_for_a_gpu_may_fail_alone(monkeypatch, capsys, logged) -> None:
    def fail(*_: object) -> None:
        raise BuildError("nvcc refused a kernel")

    monkeypatch.setattr(StagePipeline, "run", fail)
    untuned.compare_untuned(_pipeline(_request("nvidia-h200")))
    assert "build-untuned_tvm  not measured: nvcc refused" in capsys.readouterr().out
    assert logged == {"tvmopt.unmeasured.untuned_latency_ms_p50": "nvcc refused a kernel"}
    with pytest.raises(BuildError):
        untuned.compare_untuned(_pipeline(_request()))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("asked_s", "allowed_s"), [(0.0, 5.0), (4.0, 4.0)])
def test_it_has_a_share_of_a_budget_that_is_divided(asked_s, allowed_s, monkeypatch) -> None:
    """The limit of the command's stages holds as well."""
    allowed: list[Allowance] = []

    def run(pipeline: StagePipeline, name: str) -> StageOutput:
        allowed.append(pipeline.session.allow())
        return StageOutput(name, name, "", MODEL, {}, cached=False)

    monkeypatch.setattr(StagePipeline, "run", run)
    pipeline = _pipeline(_request(dtype="auto", time_budget=150.0), Allowance(asked_s, 900.0))
    untuned.compare_untuned(pipeline)
    assert Allowance(allowed_s, 900.0) in allowed
    allowed.clear()
    untuned.compare_untuned(_pipeline(_request(time_budget=150.0), Allowance(asked_s, 900.0)))
    assert set(allowed) == {Allowance(asked_s, 900.0)}


def test_a_command_with_a_divided_budget_goes_on_without_it(monkeypatch, capsys, logged) -> None:
    monkeypatch.setattr(untuned, "model_layers", lambda *_: _layers(50, 5e9))
    untuned.compare_untuned(_pipeline(_request(dtype="auto", time_budget=150.0)))
    expected = (
        "untuned TVM would take about 29 s, but may take 5 s of the "
        "time_budget of 150 s; the command goes on without a baseline"
    )
    assert f"build-untuned_tvm  not measured: {expected}" in capsys.readouterr().out
    assert logged == {"tvmopt.unmeasured.untuned_latency_ms_p50": expected}


def test_a_limit_of_the_user_ends_the_command(monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise LimitError("build was stopped: it may take 1 s, and had not ended by then")

    monkeypatch.setattr(StagePipeline, "run", fail)
    with pytest.raises(LimitError, match="it may take 1 s"):
        untuned.compare_untuned(_pipeline(_request(), Allowance(1.0)))
