"""First trials of a search with a time budget: a 16-bit float, then the analysis, then the rest.

The stages are replaced; the study, the loop and the sampler are real.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.search.small_study import DECLARATION
from tests.tracking.records import failed, record
from tvmopt.choices import AUTO
from tvmopt.errors import ConfigError, LimitError
from tvmopt.search.budget import Budget
from tvmopt.search.declared import Declared
from tvmopt.search.effort import Effort
from tvmopt.search.limits import Limits
from tvmopt.search.records import ADJUSTED
from tvmopt.search.space import BASELINE, Choice, Space
from tvmopt.search.storage import open_storage
from tvmopt.search.study import SearchStudy, find_study, open_study
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.report.sentences import SPENT_TIME, SPENT_TRIALS
from tvmopt.tracking.search import analysis, loop, opening
from tvmopt.tracking.search.finals import choose_finalists
from tvmopt.tracking.search.loop import SearchWork
from tvmopt.tracking.store.allowance import BUDGET_SPENT

GPU = Space(
    ("float16", "int8", "bfloat16", "float32"),
    {"float16": ("",), "int8": ("",), "bfloat16": ("",)},
    ("NHWC", "NCHW"),
    (Effort("default"), Effort("fast", 20)),
)
AMX = dataclasses.replace(GPU, dtypes=("bfloat16", "int8", "float32"), layouts=("NHWC",))
BUDGET = Budget(trials=4, time_s=600.0)
PARAMS = {"calibration_time": 60.0}


@pytest.fixture
def searching(tmp_path, monkeypatch) -> Callable[..., Any]:
    """Return a function that runs a search with made-up trials, and returns what happened."""
    happened: list[str] = []

    def analysed(
        session: Any, request: Any, space: Space, dtypes: list[str], _: Any, mixes: bool
    ) -> Space:
        happened.append(f"analysis of {'layers' if mixes else ','.join(dtypes)}")
        if mixes:
            return dataclasses.replace(space, dtypes=(space.dtypes[0], AUTO, *space.dtypes[1:]))
        skips = {**space.skip_layers, **dict.fromkeys(dtypes, ("3", ""))}
        return dataclasses.replace(space, skip_layers=skips)

    monkeypatch.setattr(opening, "with_analysis", analysed)
    monkeypatch.setattr(opening, "portable", lambda request: PARAMS)
    monkeypatch.setattr(opening, "with_limits_of", lambda request, analysed: request)
    monkeypatch.setattr(opening, "calibrated_as", lambda request, declaration: request)
    asked = SimpleNamespace(
        sensitivity_limit=SimpleNamespace(sensitivity_time=120.0),
        calibration=SimpleNamespace(calibration_time=0.0),
    )
    request: Any = SimpleNamespace(target=SimpleNamespace(gpu=object()), asked=asked)
    request.changed = lambda **values: request

    def search(
        space: Space,
        ends: dict[str, float | Exception],
        budget: Budget = BUDGET,
        mixes: bool = False,
    ) -> tuple[str, list[str], SearchStudy]:
        """``ends`` gives the violation of the trials of a dtype, or the error that ends one."""

        def run_trial(_: Any, __: Any, claimed: Any, *rest: Any) -> str:
            happened.append(str(claimed.choice))
            found = ends.get(claimed.choice.variant.dtype, 0.0)
            if isinstance(found, Exception):
                claimed.fail(BUDGET_SPENT, str(found))
                raise found
            claimed.finish({ADJUSTED: 1.0}, {"accuracy_drop": found}, [1.0])
            return "done"

        monkeypatch.setattr(loop, "run_trial", run_trial)
        monkeypatch.setattr(opening, "mixes_dtypes", lambda *_: mixes)
        storage = open_storage(f"sqlite:///{tmp_path / 'studies.db'}")
        declaration = {**DECLARATION, "space": space.to_dict(), "request": {}}
        study = open_study(storage, "s", declaration, budget, is_opening=True)
        job = SearchWork(
            None, request, study, budget, 0.0, Limits(0.01), ("latency",), 100.0, 0.0, 0, "run"
        )
        return opening.work_from_opening(job, Declared()), happened, study

    return search


def test_on_a_gpu_float16_comes_before_the_analysis_and_float32_last(searching) -> None:
    stopped, happened, study = searching(GPU, {}, Budget(trials=5, time_s=600.0))
    assert stopped == SPENT_TRIALS.format(5)
    # a feasible 16-bit float without skipped layers needs no analysis, nor does the other one
    assert happened == [
        str(BASELINE), "float16 NHWC default", "analysis of int8",
        "int8 NHWC default without 1 layer", "bfloat16 NHWC default", "float16 NHWC fast-20",
        "float32 NHWC default",
    ]  # fmt: skip
    assert not study.is_opening and study.declaration["request"] == PARAMS
    assert study.space.skips_of("int8") == ("3", "") and study.space.skips_of("float16") == ("",)


def test_on_a_cpu_bfloat16_comes_before_the_analysis(searching) -> None:
    _, happened, _ = searching(AMX, {}, Budget(trials=3, time_s=600.0))
    assert happened == [
        str(BASELINE), "bfloat16 NHWC default", "analysis of int8",
        "int8 NHWC default without 1 layer", "float32 NHWC default",
    ]  # fmt: skip


def test_dtypes_of_layers_are_tried_behind_the_opening(searching) -> None:
    # Optuna allows no new value of a parameter: trial 1 has to know of auto already
    _, happened, study = searching(AMX, {}, Budget(trials=4, time_s=600.0), mixes=True)
    assert happened == [
        str(BASELINE), "bfloat16 NHWC default", "analysis of layers", "auto NHWC default",
        "int8 NHWC default", "bfloat16 NHWC fast-20",
    ]  # fmt: skip
    assert study.space.dtypes == ("bfloat16", AUTO, "int8", "float32")


def test_without_a_feasible_first_trial_all_is_analysed_and_float32_is_next(searching) -> None:
    _, happened, _ = searching(GPU, {"float16": 2.0}, Budget(trials=3, time_s=600.0))
    assert happened[1:] == [
        "float16 NHWC default", "analysis of float16,int8,bfloat16", "float32 NHWC default",
        "int8 NHWC default without 1 layer",
    ]  # fmt: skip


def test_time_that_ends_in_a_trial_leaves_the_trials_before_it(searching, capsys) -> None:
    spent = LimitError("the search has spent its time_budget", BUDGET_SPENT)
    stopped, happened, study = searching(GPU, {"int8": spent})
    assert stopped == SPENT_TIME.format(600.0) and happened[-1].startswith("int8")
    finished = [r for r in study.records() if not r.is_void and not r.is_baseline]
    assert [r.choice.variant.dtype for r in finished] == ["float16"]
    assert finished[0].feasible
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("trial 2 ") and "int8 NHWC" in last and "time of the search" in last


def test_time_that_ends_in_the_first_trial_is_followed_by_no_analysis(searching) -> None:
    spent = LimitError("the search has spent its time_budget", BUDGET_SPENT)
    stopped, happened, study = searching(GPU, {"float16": spent})
    assert stopped == SPENT_TIME.format(600.0) and study.is_opening
    assert happened == [str(BASELINE), "float16 NHWC default"]
    # the same command goes on
    stopped, happened, study = searching(GPU, {})
    assert happened[2:4] == ["float16 NHWC default", "analysis of int8"]


def test_a_champion_is_chosen_from_the_trials_that_ended() -> None:
    first, second, third = (Choice(v, GPU.efforts[0]) for v in list(GPU.variants())[:3])
    records = [
        failed(0, BASELINE, "timeout"), record(1, first, 1.0), failed(2, second, BUDGET_SPENT),
        failed(3, third, "build"),
    ]  # fmt: skip
    assert [r.number for r in choose_finalists(records)] == [1]


def test_a_worker_waits_for_the_space(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(opening, "_POLL_S", 0.01)
    monkeypatch.setattr(opening, "_LONELY_S", 0.05)
    storage = open_storage(f"sqlite:///{tmp_path / 'studies.db'}")
    declaration = {**DECLARATION, "space": GPU.to_dict(), "request": {}}
    search = open_study(storage, "s", declaration, BUDGET, is_opening=True)
    waiting = find_study(storage, "s")
    with pytest.raises(ConfigError, match="must have its space"):
        opening.wait_for_space(waiting)
    search.beat()
    wider = dataclasses.replace(GPU, skip_layers={**GPU.skip_layers, "int8": ("0", "")})
    monkeypatch.setattr(opening.time, "sleep", lambda seconds: search.settle(wider, PARAMS))
    opening.wait_for_space(waiting)
    assert waiting.space == wider and waiting.declaration["request"] == PARAMS


def test_without_a_time_budget_dtypes_of_layers_are_tried_too(searching) -> None:
    _, happened, study = searching(AMX, {}, Budget(trials=3, time_s=0.0), mixes=True)
    assert happened == [
        str(BASELINE), "bfloat16 NHWC default", "analysis of layers", "auto NHWC default",
        "int8 NHWC default",
    ]  # fmt: skip
    assert study.space.dtypes == ("bfloat16", AUTO, "int8", "float32")


def test_an_opening_needs_a_half_float_to_analyse() -> None:
    dtypes = analysis.to_analyse(GPU.dtypes, Declared())
    assert dtypes == ["float16", "int8", "bfloat16"]
    assert opening.begins_with_trial(GPU, dtypes)
    declared = analysis.to_analyse(GPU.dtypes, Declared(skip_layers={"float16": ("1",)}))
    assert not opening.begins_with_trial(GPU, declared)
    vnni = dataclasses.replace(GPU, dtypes=("int8", "float32"))
    assert not opening.begins_with_trial(vnni, ["int8"])


# --- the shares of calibration and analysis


def _asked(**asked: float) -> Any:
    """A request that keeps what it is changed to."""
    values = {"sensitivity_time": 120.0, "calibration_time": 0.0, "dtypes": "", **asked}
    return SimpleNamespace(
        values=values,
        asked=SimpleNamespace(
            sensitivity_limit=SimpleNamespace(sensitivity_time=values["sensitivity_time"]),
            calibration=SimpleNamespace(calibration_time=values["calibration_time"]),
        ),
        changed=lambda **changed: _asked(**{**values, **changed}),
    )


@pytest.mark.parametrize(
    ("time_s", "left_s", "calibration", "sensitivity"),
    [
        (0.0, float("inf"), 0.0, 120.0),
        (600.0, 500.0, 60.0, 60.0),
        (600.0, 100.0, 25.0, 25.0),
        (600.0, -5.0, 1.0, 1.0),
        (7200.0, 7000.0, 720.0, 120.0),
    ],
)
def test_calibration_and_analysis_have_shares(time_s, left_s, calibration, sensitivity) -> None:
    found = analysis.analysis_request(_asked(), ["int8"], Budget(0, time_s, 1), left_s).values
    assert found["calibration_time"] == calibration
    assert found["sensitivity_time"] == sensitivity


def test_a_limit_of_the_user_below_the_share_stands() -> None:
    asked = _asked(calibration_time=7.0, sensitivity_time=8.0)
    found = analysis.analysis_request(asked, ["int8"], Budget(0, 600.0), 500.0).values
    assert (found["calibration_time"], found["sensitivity_time"]) == (7.0, 8.0)


@pytest.fixture
def stages(monkeypatch) -> Callable[..., Any]:
    """Return a function that makes stages fail; what they may use, and what was said, is kept."""
    seen: dict[str, Any] = {"allowed": {}, "said": []}
    session = dataclasses.make_dataclass("Session", ["takes_turns", "allow"])(False, None)

    def failing(**errors: LimitError) -> tuple[Any, dict[str, Any]]:
        class Pipeline:
            def __init__(self, session: Any, request: Any, known: Any = ()) -> None:
                self.session = session

            def run(self, stage: str) -> Any:
                seen["allowed"][stage] = self.session.allow().seconds
                if stage in errors:
                    raise errors[stage]
                return SimpleNamespace(folder=None)

        monkeypatch.setattr(analysis, "StagePipeline", Pipeline)
        monkeypatch.setattr(analysis, "read_sensitivity", lambda folder: None)
        monkeypatch.setattr(analysis, "choose_skips", lambda found, dtype: ("5", ""))
        monkeypatch.setattr(analysis, "_note", lambda session, text: seen["said"].append(text))
        return session, seen

    return failing


SLOW = LimitError("the stage was stopped: it may take 90 s", "timeout")
LIMITED = {"calibration_time": 60.0, "sensitivity_time": 40.0}


def test_each_stage_is_stopped_soon_after_its_share(stages) -> None:
    session, seen = stages()
    found = analysis.with_analysis(session, _asked(**LIMITED), GPU, ["int8"], Allowance())
    assert seen["allowed"] == {"calibrate": 90.0, "sensitivity": 60.0}
    assert found.skips_of("int8") == ("5", "") and seen["said"] == []
    analysis.with_analysis(session, _asked(**LIMITED), GPU, ["int8"], Allowance(30.0))
    assert seen["allowed"] == {"calibrate": 30.0, "sensitivity": 30.0}


def test_calibration_that_is_too_slow_costs_int8_alone(stages) -> None:
    session, seen = stages(calibrate=SLOW)
    found = analysis.with_analysis(
        session, _asked(**LIMITED), GPU, ["int8", "bfloat16"], Allowance()
    )
    assert found.dtypes == ("float16", "bfloat16", "float32")
    assert found.skips_of("bfloat16") == ("5", "")
    assert seen["said"] == [f"int8 is left out: {SLOW}"]
    alone = dataclasses.replace(GPU, dtypes=("int8",))
    with pytest.raises(LimitError):
        analysis.with_analysis(session, _asked(**LIMITED), alone, ["int8"], Allowance())


def test_an_analysis_that_is_too_slow_costs_the_skip_sets_alone(stages) -> None:
    session, seen = stages(sensitivity=SLOW)
    found = analysis.with_analysis(session, _asked(**LIMITED), GPU, ["int8"], Allowance())
    assert found == GPU and seen["said"] == [f"no layers are skipped: {SLOW}"]
