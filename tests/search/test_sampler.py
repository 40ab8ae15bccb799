"""Successive halving as an Optuna sampler: alone in a study of Optuna's, and in our own studies."""

from __future__ import annotations

import itertools
import random
import zlib
from collections import Counter

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from tvmopt.errors import ConfigError
from tvmopt.search.budget import Budget
from tvmopt.search.effort import Effort
from tvmopt.search.plan import next_choice
from tvmopt.search.records import choice_of, ended_baseline
from tvmopt.search.sampler import HalvingSampler, VariantSampler
from tvmopt.search.space import BASELINE, Choice, Space
from tvmopt.search.storage import open_storage
from tvmopt.search.study import SearchStudy, open_study
from tvmopt.search.tried import FINISHED, RUNNING, Tried

EFFORTS = (Effort("default"), Effort("fast", 20), Effort("metaschedule", 64))
SPACE = Space(
    ("float32", "int8"), {"int8": ("0", "", "0,1")}, ("NHWC", "NCHW"), EFFORTS
)  # fmt: skip
UNLIMITED = Budget(0, 0.0)
ALL = [Choice(variant, effort) for variant in SPACE.variants() for effort in EFFORTS]
#: Places in ``ALL`` of the trials in their order, where variants are drawn at random, by seed.
ORDERS = {
    0: [0, 3, 6, 7, 18, 19, 12, 13, 14, 21, 22, 23, 20, 8, 1, 9, 2, 10, 11],
    3: [0, 3, 18, 19, 12, 13, 21, 9, 22, 14, 6, 23, 20, 10, 11, 7, 8, 1, 2],
}


def _latency(choice: Choice) -> float:
    """Return a latency that is the same in every process; dear efforts are faster."""
    text = f"{choice.variant.dtype} {choice.variant.skip_layers} {choice.variant.layout}"
    chance = zlib.crc32(text.encode()) % 97 / 97
    return (1.0 + chance) / (1 + EFFORTS.index(choice.effort))


def _alone(sampler: HalvingSampler, objectives: int = 1, **kwargs: object) -> optuna.Study:
    study = optuna.create_study(directions=["minimize"] * objectives, sampler=sampler)
    study.optimize(lambda trial: _measure(trial, objectives), **kwargs)
    return study


def _measure(trial: optuna.Trial, objectives: int) -> tuple[float, ...]:
    choice = SPACE.suggest(trial)
    trial.set_constraint("accuracy_drop", 0.5 if choice.variant.skip_layers == "0" else -0.5)
    return (_latency(choice), 0.1, 1e6)[:objectives]


def _choices(study: optuna.Study) -> list[Choice]:
    found = [choice_of(trial, SPACE) for trial in study.get_trials(deepcopy=False)]
    return [choice for choice in found if choice is not None]


@pytest.fixture(autouse=True, scope="module")
def quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


# --- alone in a study of Optuna's


@pytest.mark.parametrize("seed", [0, 3])
def test_alone_it_visits_the_rungs_as_the_plan_does(seed: int) -> None:
    tried: list[Tried] = []
    sampler = VariantSampler(seed)
    while (choice := next_choice(SPACE, tried, sampler)) is not None:
        inaccurate = choice.variant.skip_layers == "0"
        violation = 0.5 if inaccurate else 0.0
        tried.append(Tried(choice, FINISHED, violation, (_latency(choice),), inaccurate))
    study = _alone(HalvingSampler(SPACE, seed))
    assert _choices(study) == [t.choice for t in tried]
    assert {t.state for t in study.trials} == {TrialState.COMPLETE}


@pytest.mark.parametrize("objectives", [1, 3])
def test_alone_it_stops_when_no_choice_is_left(objectives: int) -> None:
    choices = _choices(_alone(HalvingSampler(SPACE), objectives, n_trials=1000))
    dear = [c for c in choices if c.variant.skip_layers != "0"]
    assert set(Counter(choices).values()) == {1}
    # an inaccurate variant is tried in one layout, and not tuned
    assert len(dear) == 6 * 3 and len(choices) == 6 * 3 + 1


def test_a_study_goes_on_with_another_sampler() -> None:
    study = _alone(HalvingSampler(SPACE, 0), n_trials=5)
    study.sampler = HalvingSampler(SPACE, 1)
    study.optimize(lambda trial: _measure(trial, 1))
    choices = _choices(study)
    assert len(choices) == len(set(choices)) == 19


def test_threads_share_a_sampler_and_double_nothing() -> None:
    choices = _choices(_alone(HalvingSampler(SPACE), n_jobs=3, n_trials=10))
    assert len(choices) == len(set(choices)) == 10


def test_a_choice_that_was_enqueued_is_not_repeated() -> None:
    study = optuna.create_study(sampler=HalvingSampler(SPACE))
    wanted = Choice(list(SPACE.variants())[-1], EFFORTS[1])
    study.enqueue_trial(SPACE.params(wanted))
    study.optimize(lambda trial: _measure(trial, 1))
    choices = _choices(study)
    assert choices[0] == wanted
    assert len(choices) == len(set(choices))


def test_parameters_outside_of_the_space_are_random() -> None:
    def measure(trial: optuna.Trial) -> float:
        SPACE.suggest(trial)
        return trial.suggest_float("x", 0.0, 1.0)

    study = optuna.create_study(sampler=HalvingSampler(SPACE))
    study.optimize(measure, n_trials=3)
    assert len({t.params["x"] for t in study.trials}) == 3


def test_a_maximised_objective_is_refused() -> None:
    study = optuna.create_study(direction="maximize", sampler=HalvingSampler(SPACE))
    with pytest.raises(ConfigError, match="each objective must be minimised, but one is maximised"):
        SPACE.suggest(study.ask())


def test_who_asks_when_nothing_is_left_is_told() -> None:
    study = _alone(HalvingSampler(SPACE))
    with pytest.raises(optuna.TrialPruned, match="no choice of the space is left"):
        SPACE.suggest(study.ask())


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 10_000))
def test_whatever_trials_come_to_no_choice_is_repeated(seed: int) -> None:
    chance = random.Random(seed)

    def measure(trial: optuna.Trial) -> float:
        SPACE.suggest(trial)
        if chance.random() < 0.2:
            raise RuntimeError
        if chance.random() < 0.2:
            raise optuna.TrialPruned
        trial.set_constraint("memory_mb", chance.choice([-1.0, 0.3]))
        return chance.random()

    study = optuna.create_study(sampler=HalvingSampler(SPACE, seed))
    study.optimize(measure, catch=(RuntimeError,))
    choices = _choices(study)
    assert len(choices) == len(set(choices)) == len(study.trials)
    finished = {
        choice
        for choice, trial in zip(choices, study.trials, strict=True)
        if trial.state == TrialState.COMPLETE
    }
    for lower, upper in itertools.pairwise(EFFORTS):
        done = {c.variant for c in finished if c.effort == lower}
        assert {c.variant for c in choices if c.effort == upper} == done


# --- in our own studies


def _searched(
    folder, objectives: tuple[str, ...], seed: int = 0, budget: Budget = UNLIMITED
) -> SearchStudy:
    storage = open_storage(f"sqlite:///{folder / 'studies.db'}")
    declaration = {"space": SPACE.to_dict(), "objectives": list(objectives)}
    study = open_study(storage, "s", declaration, budget)
    sampler = study.sample_with(seed)
    while (claimed := study.claim(sampler.choose, budget)) is not None:
        drop = 0.5 if claimed.choice.variant.skip_layers == "0" else -0.5
        latency = 9.0 if claimed.choice == BASELINE else _latency(claimed.choice)
        values = [latency, 0.1, 1e6][: len(objectives)]
        claimed.finish({"accuracy_drop": 0.1}, {"accuracy_drop": drop}, values)
    return study


@pytest.mark.parametrize("objectives", [1, 3])
@pytest.mark.parametrize("seed", sorted(ORDERS))
def test_the_order_is_that_of_earlier_versions(
    tmp_path, monkeypatch, seed: int, objectives: int
) -> None:
    def random_sampler(seed: int | None = None, **_: object) -> optuna.samplers.BaseSampler:
        return optuna.samplers.RandomSampler(seed)

    # TPE's linear algebra rounds differently on each family of CPUs
    monkeypatch.setattr(optuna.samplers, "TPESampler", random_sampler)
    names = ("latency", "accuracy_drop", "library_bytes")[:objectives]
    records = _searched(tmp_path, names, seed).records()
    assert [ALL.index(r.choice) for r in records[1:]] == ORDERS[seed]


def test_our_studies_and_optunas_visit_the_same_choices(tmp_path) -> None:
    records = _searched(tmp_path, ("latency",)).records()
    assert records[0].choice == BASELINE
    assert [r.choice for r in records[1:]] == _choices(_alone(HalvingSampler(SPACE)))


def test_nothing_left_is_told_from_waiting_for_trials(tmp_path) -> None:
    study = _searched(tmp_path, ("latency",))
    sampler = study.sample_with(0)
    assert study.claim(sampler.choose, Budget(0, 0.0)) is None
    assert not [t for t in study.tried() if t.state == RUNNING]
    last = study.tried()[-1]
    waits = [*study.tried()[:-1], Tried(last.choice, RUNNING)]
    assert sampler.choose(waits) is None
    assert [t.choice for t in waits if t.state == RUNNING] == [last.choice]


@pytest.fixture(params=["ours", "alone"])
def two_objectives(request, tmp_path) -> optuna.Study:
    """A finished study with two objectives: of SearchStudy, and of the sampler alone."""
    if request.param == "alone":
        return _alone(HalvingSampler(SPACE), 2)
    _searched(tmp_path, ("latency", "accuracy_drop"))
    return optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path / 'studies.db'}")


def test_optunas_importances_are_of_every_parameter(two_objectives) -> None:
    every = {"dtype", "layout", "effort"}
    evaluators = {
        optuna.importance.FanovaImportanceEvaluator(seed=0): every,
        optuna.importance.PedAnovaImportanceEvaluator(): {*every, "skip_layers_int8"},
    }
    for evaluator, names in evaluators.items():
        found = optuna.importance.get_param_importances(
            two_objectives, evaluator=evaluator, target=lambda t: t.values[0]
        )
        assert set(found) == names
        assert "effort" in sorted(found, key=lambda name: found[name])[-2:]


def test_optuna_draws_the_study_as_it_is(two_objectives) -> None:
    pytest.importorskip("plotly", reason="plotly, of the test extra, is not installed")
    front = optuna.visualization.plot_pareto_front(two_objectives)
    drawn = sum(len(trace.x) for trace in front.data)
    assert drawn == len(two_objectives.trials)
    importances = optuna.visualization.plot_param_importances(
        two_objectives, target=lambda t: t.values[0]
    )
    assert set(importances.data[0].y) == {"dtype", "layout", "effort", "skip_layers_int8"}
    history = optuna.visualization.plot_optimization_history(
        two_objectives, target=lambda t: t.values[0]
    )
    drawn = sum(len(trace.x) for trace in history.data if trace.mode == "markers")
    assert drawn == len(two_objectives.trials)


def test_optuna_draws_a_study_of_the_latency_alone(tmp_path) -> None:
    pytest.importorskip("plotly", reason="plotly, of the test extra, is not installed")
    _searched(tmp_path, ("latency",))
    study = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path / 'studies.db'}")
    front = optuna.visualization.plot_pareto_front(
        study,
        targets=lambda t: (t.value, t.user_attrs["metrics"]["accuracy_drop"]),
        target_names=["latency", "accuracy_drop"],
    )
    assert front.layout.xaxis.title.text == "latency"
    history = optuna.visualization.plot_optimization_history(study)
    assert sum(len(trace.x) for trace in history.data if trace.mode == "markers") == 20
    importances = optuna.visualization.plot_param_importances(study)
    assert "effort" in importances.data[0].y[-2:]


def test_objectives_have_names(tmp_path) -> None:
    _searched(tmp_path, ("latency", "library_bytes"), budget=Budget(1, 0.0))
    study = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path / 'studies.db'}")
    assert study.metric_names == ["latency", "library_bytes"]
    assert [t.user_attrs["violation"] for t in study.trials] == [0.0, 0.0]
    assert study.trials[0].params == {"dtype": "float32", "layout": "NCHW", "effort": "none"}


def test_a_study_whose_trial_zero_has_no_parameters_goes_on(tmp_path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path / 'studies.db'}")
    declaration = {"space": SPACE.to_dict(), "objectives": ["latency"]}
    study = open_study(storage, "s", declaration, Budget(0, 0.0))
    first = Choice(next(iter(SPACE.variants())), EFFORTS[0])
    for choice in (BASELINE, first):  # as an earlier version stored them
        params = {} if choice == BASELINE else SPACE.params(choice)
        found = {k: v for k, v in SPACE.parameters().items() if k in params}
        study._study.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions={
                    k: optuna.distributions.CategoricalDistribution(v) for k, v in found.items()
                },
                user_attrs={"choice": choice.to_dict(), "metrics": {"accuracy_drop": 0.1}},
                value=1.0,
            )
        )
    study = _searched(tmp_path, ("latency",))
    choices = [r.choice for r in study.records()]
    assert choices[:2] == [BASELINE, first]
    assert len(choices) == len(set(choices)) == 1 + 19
    assert ended_baseline(study.records()).metrics == {"accuracy_drop": 0.1}
