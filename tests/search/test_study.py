"""Tests of the study database: claims, ends, dead processes, budgets, concurrent processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from tvmopt.errors import ConfigError, TrialTakenError
from tvmopt.process import Process
from tvmopt.search.budget import Budget
from tvmopt.search.effort import Effort
from tvmopt.search.plan import RUNNING, next_choice
from tvmopt.search.sampler import VariantSampler
from tvmopt.search.space import BASELINE, Space
from tvmopt.search.storage import open_storage
from tvmopt.search.study import Clock, SearchStudy, find_study, open_study

SPACE = Space(
    ("float32", "int8"),
    {"int8": ("0", "")},
    ("NHWC", "NCHW"),
    (Effort("default"), Effort("fast", 20)),
)
DECLARATION = {"model": "m1", "space": SPACE.to_dict(), "objectives": ["latency"]}
BUDGET = Budget(trials=0, time_s=0.0)


def _open(folder: Path, budget: Budget = BUDGET, **changed: object) -> SearchStudy:
    storage = open_storage(f"sqlite:///{folder / 'studies.db'}")
    return open_study(storage, "s", {**DECLARATION, **changed}, budget)


def _claim(study: SearchStudy, budget: Budget = BUDGET):
    sampler = VariantSampler(0)
    return study.claim(lambda tried: next_choice(study.space, tried, sampler), budget)


def _finish(claimed, latency: float, violation: float = 0.0) -> None:
    claimed.finish({"p50": latency}, {"accuracy_drop": violation}, [latency])


def _run(study: SearchStudy, budget: Budget) -> None:
    study.beat()
    while (claimed := _claim(study, budget)) is not None:
        _finish(claimed, 1.0)


def test_trial_zero_is_the_baseline_and_the_rest_fill_the_budget(tmp_path) -> None:
    study = _open(tmp_path)
    _run(study, Budget(trials=5, time_s=0.0))
    records = study.records()
    assert [r.number for r in records] == list(range(6))
    assert records[0].choice == BASELINE
    assert study.ended_trials() == 5
    assert len({r.choice for r in records}) == 6
    assert all(r.feasible and r.metrics == {"p50": 1.0} for r in records)


def test_a_study_goes_on_where_it_was_left(tmp_path) -> None:
    _run(_open(tmp_path), Budget(trials=3, time_s=0.0))
    again = _open(tmp_path)
    assert _claim(again, Budget(trials=3, time_s=0.0)) is None
    _run(again, Budget(trials=5, time_s=0.0))
    assert len({r.choice for r in again.records()}) == 6


def test_the_whole_space_and_not_more_is_tried(tmp_path) -> None:
    study = _open(tmp_path)
    _run(study, BUDGET)
    assert study.ended_trials() == len(SPACE)


def test_nothing_is_claimed_before_the_baseline_has_ended(tmp_path) -> None:
    study = _open(tmp_path)
    study.beat()
    zero = _claim(study)
    assert zero is not None and zero.choice == BASELINE
    assert _claim(study) is None
    zero.fail("crash", "it crashed")
    first = _claim(study)
    assert first is not None and first.choice != BASELINE
    baseline = study.baseline()
    assert baseline is not None
    assert (baseline.failure, baseline.error) == ("crash", "it crashed")


@pytest.mark.parametrize("failure", ["out_of_memory", "killed", "crash"])
def test_a_failed_choice_counts_and_is_not_made_again(tmp_path, failure: str) -> None:
    study = _open(tmp_path)
    study.beat()
    _finish(_claim(study), 1.0)
    failed = _claim(study)
    failed.fail(failure, "its stage ended so")
    made = [_claim(study).choice for _ in range(3)]
    assert failed.choice not in made
    assert study.ended_trials() == 1


@pytest.mark.parametrize("failure", ["orphaned", "interrupted", "time_budget"])
def test_a_void_end_gives_the_choice_back(tmp_path, failure: str) -> None:
    study = _open(tmp_path)
    study.beat()
    _finish(_claim(study), 1.0)
    given_back = _claim(study)
    given_back.fail(failure, "not its fault")
    assert study.ended_trials() == 0
    assert _claim(study).choice == given_back.choice


def test_constraints_are_optunas_own(tmp_path) -> None:
    import optuna

    study = _open(tmp_path)
    study.beat()
    _finish(_claim(study), 1.0)
    _finish(_claim(study), 0.5, violation=0.3)
    _finish(_claim(study), 0.7)
    assert [r.feasible for r in study.records()] == [True, False, True]
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    known = optuna.load_study(study_name="s", storage=url)
    assert known.trials[1].constraints == {"accuracy_drop": 0.3}
    assert known.best_trial.value == 0.7


def test_trials_without_a_better_artifact_are_counted(tmp_path) -> None:
    study = _open(tmp_path)
    study.beat()
    _finish(_claim(study), 0.1)  # the baseline is not counted
    for latency, stale in ((3.0, 0), (4.0, 1), (2.0, 0), (2.0, 1)):
        _finish(_claim(study), latency)
        assert study.stale_trials() == stale
    _finish(_claim(study), 1.0, violation=1.0)
    assert study.stale_trials() == 2


def test_a_study_about_something_else_is_refused(tmp_path) -> None:
    _open(tmp_path)
    with pytest.raises(ConfigError, match=r"study 's' must be gone on with .* got another model;"):
        _open(tmp_path, model="m2")
    smaller = dataclasses.replace(SPACE, layouts=("NHWC",))
    assert _open(tmp_path, space=smaller.to_dict()).space == SPACE  # declared once


def test_of_processes_that_begin_a_study_at_once_one_declares_it(tmp_path) -> None:
    spaces = [dataclasses.replace(SPACE, layouts=(f"NCHW{n}c",)) for n in range(1, 5)]
    open_storage(f"sqlite:///{tmp_path / 'studies.db'}")
    ready = threading.Barrier(len(spaces))
    found: list[Space] = []

    def begin(space: Space) -> None:
        ready.wait()
        found.append(_open(tmp_path, space=space.to_dict()).space)

    threads = [threading.Thread(target=begin, args=(space,)) for space in spaces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == len(spaces)
    assert len(set(map(str, found))) == 1


def test_a_study_whose_maker_died_before_declaring_it_is_made_again(tmp_path) -> None:
    import optuna

    storage = open_storage(f"sqlite:///{tmp_path / 'studies.db'}")
    optuna.create_study(study_name="s", storage=storage, direction="minimize")
    assert find_study(storage, "s") is None
    assert _open(tmp_path).space == SPACE


@pytest.mark.parametrize(
    "url", ["nonsense", "sqlite:////proc/no/such/folder/s.db", "oracle://u:secret@h/x"]
)
def test_a_wrong_storage_is_one_clear_error_without_the_password(url: str) -> None:
    with pytest.raises(ConfigError, match="storage must be the URL of a database") as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


# --- processes that die


_CHILD = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_study import _claim, _finish, _open
study = _open(Path({folder!r}))
study.beat()
_finish(_claim(study), 1.0)
_claim(study)
print("claimed", flush=True)
time.sleep(60)
"""


def _killed_child(folder: Path) -> None:
    """Return a killed process that had finished one trial and claimed another."""
    code = _CHILD.format(tests=str(Path(__file__).parent), folder=str(folder))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env)
    assert child.stdout is not None
    assert child.stdout.readline() == b"claimed\n"
    child.send_signal(signal.SIGKILL)
    child.wait()


def test_the_trial_of_a_killed_process_is_given_back(tmp_path) -> None:
    _killed_child(tmp_path)
    study = _open(tmp_path)
    lost = study.records()[-1]
    assert lost.state == RUNNING
    study.beat()
    again = _claim(study)
    assert again.choice == lost.choice
    assert again.number != lost.number
    record = study.records()[lost.number]
    assert (record.failure, record.is_void) == ("orphaned", True)
    assert study.sweep() == []  # this process's own trial stays claimed


class Hand:
    """Fake clocks that a test advances."""

    def __init__(self) -> None:
        self.wall, self.monotonic = 1.7e9, 5000.0

    def clock(self) -> Clock:
        return Clock(lambda: self.wall, lambda: self.monotonic)

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


def _joined(folder: Path, hand: Hand, **other: object) -> SearchStudy:
    """Return the study, opened as a process that differs from this one in some facts."""
    process = dataclasses.replace(Process.own(), **other)
    storage = open_storage(f"sqlite:///{folder / 'studies.db'}")
    return SearchStudy(storage, "s", process, hand.clock(), silent_s=30.0)


def test_two_machines_of_one_name_leave_each_other_their_trials(tmp_path) -> None:
    _open(tmp_path)
    hand = Hand()
    ours, clone = _joined(tmp_path, hand), _joined(tmp_path, hand, boot="another boot")
    ours.beat()
    clone.beat()
    _finish(_claim(clone), 1.0)
    held = _claim(clone)
    for _ in range(40):
        assert ours.sweep() == []
        hand.passes(2.0)
        clone.beat()
        ours.beat()
    assert _claim(ours).choice != held.choice
    for _ in range(10):  # now it is silent: 20 s do not suffice
        hand.passes(2.0)
        ours.beat()
    assert ours.sweep() == []
    for _ in range(6):
        hand.passes(2.0)
        ours.beat()
    assert ours.sweep() == [held.number]


def test_clocks_of_machines_may_differ_by_hours(tmp_path) -> None:
    _open(tmp_path)
    early, late = Hand(), Hand()
    early.wall -= 3600.0
    behind, ours = _joined(tmp_path, early, boot="another boot"), _joined(tmp_path, late)
    behind.beat()
    assert _claim(behind) is not None
    assert ours.sweep() == []


def test_a_trial_whose_process_never_beat_is_given_back_in_the_end(tmp_path) -> None:
    _open(tmp_path)
    hand = Hand()
    lost = _claim(_joined(tmp_path, hand, boot="an earlier boot"))
    ours = _joined(tmp_path, hand)
    found = []
    for _ in range(40):  # as in the loop that waits for running trials
        hand.passes(1.0)
        found += ours.sweep()
    assert found == [lost.number]


def test_a_trial_that_another_worker_took_is_dropped(tmp_path) -> None:
    study = _open(tmp_path)
    study.beat()
    _finish(_claim(study), 1.0)
    ends = [
        lambda it: it.finish({"p50": 1.0}, {"accuracy_drop": 0.0}, [1.0]),
        lambda it: it.fail("crash", "it crashed"),
        lambda it: it.note("run_id", "r"),
        lambda it: it._tell(TrialState.FAIL),  # claimed after the last fact was recorded
    ]
    for end in ends:
        taken = _claim(study)
        [running] = study._study.get_trials(states=(TrialState.RUNNING,))
        assert study._void(running, "orphaned", "its process died")
        said = f"trial {taken.number} was given to another worker; its result is dropped"
        with pytest.raises(TrialTakenError, match=said):
            end(taken)
        record = study.records()[taken.number]
        assert (record.failure, record.metrics) == ("orphaned", {})
    assert _claim(study).choice == taken.choice


def test_an_end_whose_answer_was_lost_is_no_loss(tmp_path) -> None:
    study = _open(tmp_path)
    claimed = _claim(study)
    _finish(claimed, 1.0)
    claimed._tell(TrialState.COMPLETE, [1.0])
    assert study.records()[0].feasible


def test_a_claim_whose_answer_was_lost_is_one_trial(tmp_path, monkeypatch) -> None:
    study = _open(tmp_path)
    create, lost = study._storage.create_new_trial, ["the answer"]

    def answer_is_lost(*args: object) -> int:
        number = create(*args)
        if lost:
            lost.clear()
            raise StorageInternalError("") from OperationalError("", {}, Exception("closed"))
        return number

    monkeypatch.setattr(study._storage, "create_new_trial", answer_is_lost)
    assert _claim(study).number == 0
    assert len(study.records()) == 1


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_of_the_wall_clock_is_no_work(tmp_path, step: float) -> None:
    _open(tmp_path)
    hand = Hand()
    first = _joined(tmp_path, hand)
    first.beat()
    hand.passes(10.0)
    first.beat()
    hand.wall += step
    hand.passes(20.0)
    first.beat()
    assert first.worked_s() == pytest.approx(30.0)
    second = _joined(tmp_path, hand)  # the time after the step
    second.beat()
    hand.passes(5.0)
    second.beat()
    assert second.worked_s() == pytest.approx(35.0)


def test_time_before_the_study_was_there_counts(tmp_path) -> None:
    _open(tmp_path)
    hand = Hand()
    study = _joined(tmp_path, hand)
    study.count_from(hand.monotonic - 50.0)
    study.beat()
    assert study.worked_s() == pytest.approx(50.0)


def test_sessions_of_older_versions_are_read(tmp_path) -> None:
    _open(tmp_path)
    hand = Hand()
    study = _joined(tmp_path, hand)
    old = {"host": "elsewhere", "boot": "b", "pid": 1, "start": "1"}
    study._study.set_user_attr("session:0", [100.0, 130.0, old])
    study.beat()
    assert study.worked_s() == pytest.approx(30.0)
    assert study.sweep() == []


def test_time_counts_over_all_sessions(tmp_path) -> None:
    _open(tmp_path)
    hand = Hand()
    first, second = _joined(tmp_path, hand), _joined(tmp_path, hand)
    for seconds in (0.0, 5.0):
        hand.passes(seconds)
        first.beat()
        second.beat()
    assert first.worked_s() == pytest.approx(5.0)
    assert first.worked_s() == pytest.approx(_open(tmp_path).worked_s())


# --- several at once


_WORKER = """
import sys
sys.path.insert(0, {tests!r})
from test_study import _work
_work({folder!r}, {seed})
"""


def _work(folder: str, seed: int) -> None:
    study = _open(Path(folder))
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
        _finish(claimed, 1.0)


@pytest.mark.timeout(200)
def test_several_processes_share_the_work_and_double_none(tmp_path) -> None:
    _open(tmp_path)
    tests, env = str(Path(__file__).parent), {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    codes = [_WORKER.format(tests=tests, folder=str(tmp_path), seed=seed) for seed in range(4)]
    workers = [subprocess.Popen([sys.executable, "-c", code], env=env) for code in codes]
    for worker in workers:
        assert worker.wait(150) == 0
    study = _open(tmp_path)
    records = study.records()
    choices = [r.choice for r in records]
    assert len(choices) == len(set(choices)) == 11
    assert study.ended_trials() == 10
    assert all(r.feasible for r in records)


def test_what_belongs_to_the_study_is_kept(tmp_path) -> None:
    study = _open(tmp_path)
    assert (study.ending, study.parent_run) == (None, "")
    study.end({"number": 3})
    study.parent_run = "r1"
    again = _open(tmp_path, Budget(5, 0.0))
    assert (again.ending, again.parent_run) == ({"number": 3}, "r1")
    assert again.budget == study.budget == Budget(5, 0.0)
