"""Tests of the study database: claims, ends, budgets, concurrent processes."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

import pytest

from tvmopt.errors import ConfigError
from tvmopt.search.budget import Budget
from tvmopt.search.plan import next_choice
from tvmopt.search.records import ended_baseline
from tvmopt.search.sampler import VariantSampler
from tvmopt.search.space import BASELINE, Space
from tvmopt.search.storage import open_storage
from tvmopt.search.study import find_study
from tvmopt.search.tried import RUNNING

from .small_study import (
    BUDGET,
    SPACE,
    claim_next,
    finish_with_latency,
    open_small_study,
    run_all,
    start_python,
)


def test_trial_zero_is_the_baseline_and_the_rest_fill_the_budget(tmp_path) -> None:
    study = open_small_study(tmp_path)
    run_all(study, Budget(trials=5, time_s=0.0))
    records = study.records()
    assert [r.number for r in records] == list(range(6))
    assert records[0].choice == BASELINE
    assert study.ended_trials() == 5
    assert len({r.choice for r in records}) == 6
    assert all(r.feasible and r.metrics == {"p50": 1.0} for r in records)


def test_a_study_goes_on_where_it_was_left(tmp_path) -> None:
    run_all(open_small_study(tmp_path), Budget(trials=3, time_s=0.0))
    again = open_small_study(tmp_path)
    assert claim_next(again, Budget(trials=3, time_s=0.0)) is None
    run_all(again, Budget(trials=5, time_s=0.0))
    assert len({r.choice for r in again.records()}) == 6


def test_the_whole_space_and_not_more_is_tried(tmp_path) -> None:
    study = open_small_study(tmp_path)
    run_all(study, BUDGET)
    assert study.ended_trials() == len(SPACE)


def test_nothing_is_claimed_before_the_baseline_has_ended(tmp_path) -> None:
    study = open_small_study(tmp_path)
    study.beat()
    zero = claim_next(study)
    assert zero is not None and zero.choice == BASELINE
    assert claim_next(study) is None
    zero.fail("crash", "it crashed")
    first = claim_next(study)
    assert first is not None and first.choice != BASELINE
    baseline = ended_baseline(study.records())
    assert baseline is not None
    assert (baseline.failure, baseline.error) == ("crash", "it crashed")


@pytest.mark.parametrize("failure", ["out_of_memory", "killed", "crash"])
def test_a_failed_choice_counts_and_is_not_made_again(tmp_path, failure: str) -> None:
    study = open_small_study(tmp_path)
    study.beat()
    finish_with_latency(claim_next(study), 1.0)
    failed = claim_next(study)
    failed.fail(failure, "its stage ended so")
    made = [claim_next(study).choice for _ in range(3)]
    assert failed.choice not in made
    assert study.ended_trials() == 1


@pytest.mark.parametrize("failure", ["orphaned", "interrupted", "time_budget"])
def test_a_void_end_gives_the_choice_back(tmp_path, failure: str) -> None:
    study = open_small_study(tmp_path)
    study.beat()
    finish_with_latency(claim_next(study), 1.0)
    given_back = claim_next(study)
    given_back.fail(failure, "not its fault")
    assert study.ended_trials() == 0
    assert claim_next(study).choice == given_back.choice


def test_constraints_are_optunas_own(tmp_path) -> None:
    import optuna

    study = open_small_study(tmp_path)
    study.beat()
    finish_with_latency(claim_next(study), 1.0)
    finish_with_latency(claim_next(study), 0.5, violation=0.3)
    finish_with_latency(claim_next(study), 0.7)
    assert [r.feasible for r in study.records()] == [True, False, True]
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    known = optuna.load_study(study_name="s", storage=url)
    assert known.trials[1].constraints == {"accuracy_drop": 0.3}
    assert known.best_trial.value == 0.7


def test_trials_without_a_better_artifact_are_counted(tmp_path) -> None:
    study = open_small_study(tmp_path)
    study.beat()
    finish_with_latency(claim_next(study), 0.1)  # the baseline is not counted
    for latency, stale in ((3.0, 0), (4.0, 1), (2.0, 0), (2.0, 1)):
        finish_with_latency(claim_next(study), latency)
        assert study.stale_trials() == stale
    finish_with_latency(claim_next(study), 1.0, violation=1.0)
    assert study.stale_trials() == 2


def test_a_study_about_something_else_is_refused(tmp_path) -> None:
    open_small_study(tmp_path)
    with pytest.raises(ConfigError, match=r"study 's' must be gone on with .* got another model;"):
        open_small_study(tmp_path, model="m2")
    smaller = dataclasses.replace(SPACE, layouts=("NHWC",))
    assert open_small_study(tmp_path, space=smaller.to_dict()).space == SPACE  # declared once


def test_of_processes_that_begin_a_study_at_once_one_declares_it(tmp_path) -> None:
    spaces = [dataclasses.replace(SPACE, layouts=(f"NCHW{n}c",)) for n in range(1, 5)]
    open_storage(f"sqlite:///{tmp_path / 'studies.db'}")
    ready = threading.Barrier(len(spaces))
    found: list[Space] = []

    def begin(space: Space) -> None:
        ready.wait()
        found.append(open_small_study(tmp_path, space=space.to_dict()).space)

    threads = [threading.Thread(target=begin, args=(space,)) for space in spaces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == len(spaces)
    assert len(set(map(str, found))) == 1


@pytest.mark.slow  # test_dead_workers.py has dead workers
def test_a_study_whose_maker_died_before_declaring_it_is_made_again(tmp_path) -> None:
    import optuna

    storage = open_storage(f"sqlite:///{tmp_path / 'studies.db'}")
    optuna.create_study(study_name="s", storage=storage, direction="minimize")
    assert find_study(storage, "s") is None
    assert open_small_study(tmp_path).space == SPACE


@pytest.mark.parametrize(
    "url", ["nonsense", "sqlite:////proc/no/such/folder/s.db", "oracle://u:secret@h/x"]
)
def test_a_wrong_storage_is_one_clear_error_without_the_password(url: str) -> None:
    with pytest.raises(ConfigError, match="storage must be the URL of a database") as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


_WORKER = """
from tests.search.test_study import _work
_work({folder!r}, {seed})
"""


def _work(folder: str, seed: int) -> None:
    study = open_small_study(Path(folder))
    sampler = VariantSampler(seed)
    budget = Budget(trials=10, time_s=0.0)
    study.beat()
    while True:
        claimed = study.claim(lambda tried: next_choice(study.space, tried, sampler), budget)
        if claimed is None:
            if not any(r.state == RUNNING for r in study.records()):
                return
            time.sleep(0.05)
            continue
        time.sleep(0.05)
        finish_with_latency(claimed, 1.0)


@pytest.mark.timeout(200)
def test_several_processes_share_the_work_and_double_none(tmp_path) -> None:
    open_small_study(tmp_path)
    codes = [_WORKER.format(folder=str(tmp_path), seed=seed) for seed in range(2)]
    workers = [start_python(code) for code in codes]
    for worker in workers:
        assert worker.wait(150) == 0
    study = open_small_study(tmp_path)
    records = study.records()
    choices = [r.choice for r in records]
    assert len(choices) == len(set(choices)) == 11
    assert study.ended_trials() == 10
    assert all(r.feasible for r in records)


def test_what_belongs_to_the_study_is_kept(tmp_path) -> None:
    study = open_small_study(tmp_path)
    assert (study.ending, study.parent_run) == (None, "")
    study.end({"number": 3})
    study.parent_run = "r1"
    again = open_small_study(tmp_path, Budget(5, 0.0))
    assert (again.ending, again.parent_run) == ({"number": 3}, "r1")
    assert again.budget == study.budget == Budget(5, 0.0)
