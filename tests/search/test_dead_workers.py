"""Tests of trials whose process died, of machines that look alike, and of time over sessions."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import pytest
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from tvmopt.errors import TrialTakenError
from tvmopt.process import Process
from tvmopt.search.storage import open_storage
from tvmopt.search.study import Clock, SearchStudy
from tvmopt.search.tried import RUNNING

from .small_study import claim_next, finish_with_latency, open_small_study, start_python

_CHILD = """
import time
from pathlib import Path
from tests.search.small_study import claim_next, finish_with_latency, open_small_study
study = open_small_study(Path({folder!r}))
study.beat()
finish_with_latency(claim_next(study), 1.0)
claim_next(study)
print("claimed", flush=True)
time.sleep(60)
"""


def _killed_child(folder: Path) -> None:
    """Return a killed process that had finished one trial and claimed another."""
    child = start_python(_CHILD.format(folder=str(folder)))
    assert child.stdout is not None
    assert child.stdout.readline() == b"claimed\n"
    child.send_signal(signal.SIGKILL)
    child.wait()


def test_the_trial_of_a_killed_process_is_given_back(tmp_path) -> None:
    _killed_child(tmp_path)
    study = open_small_study(tmp_path)
    lost = study.records()[-1]
    assert lost.state == RUNNING
    study.beat()
    again = claim_next(study)
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
    open_small_study(tmp_path)
    hand = Hand()
    ours, clone = _joined(tmp_path, hand), _joined(tmp_path, hand, boot="another boot")
    ours.beat()
    clone.beat()
    finish_with_latency(claim_next(clone), 1.0)
    held = claim_next(clone)
    for _ in range(40):
        assert ours.sweep() == []
        hand.passes(2.0)
        clone.beat()
        ours.beat()
    assert claim_next(ours).choice != held.choice
    for _ in range(10):  # now it is silent: 20 s do not suffice
        hand.passes(2.0)
        ours.beat()
    assert ours.sweep() == []
    for _ in range(6):
        hand.passes(2.0)
        ours.beat()
    assert ours.sweep() == [held.number]


def test_clocks_of_machines_may_differ_by_hours(tmp_path) -> None:
    open_small_study(tmp_path)
    early, late = Hand(), Hand()
    early.wall -= 3600.0
    behind, ours = _joined(tmp_path, early, boot="another boot"), _joined(tmp_path, late)
    behind.beat()
    assert claim_next(behind) is not None
    assert ours.sweep() == []


def test_a_trial_whose_process_never_beat_is_given_back_in_the_end(tmp_path) -> None:
    open_small_study(tmp_path)
    hand = Hand()
    lost = claim_next(_joined(tmp_path, hand, boot="an earlier boot"))
    ours = _joined(tmp_path, hand)
    found = []
    for _ in range(40):  # as in the loop that waits for running trials
        hand.passes(1.0)
        found += ours.sweep()
    assert found == [lost.number]


def test_a_trial_that_another_worker_took_is_dropped(tmp_path) -> None:
    study = open_small_study(tmp_path)
    study.beat()
    finish_with_latency(claim_next(study), 1.0)
    ends = [
        lambda it: it.finish({"p50": 1.0}, {"accuracy_drop": 0.0}, [1.0]),
        lambda it: it.fail("crash", "it crashed"),
        lambda it: it.note("run_id", "r"),
        lambda it: it._tell(TrialState.FAIL),  # claimed after the last fact was recorded
    ]
    for end in ends:
        taken = claim_next(study)
        [running] = study._study.get_trials(states=(TrialState.RUNNING,))
        assert study._void(running, "orphaned", "its process died")
        said = f"trial {taken.number} was given to another worker; its result is dropped"
        with pytest.raises(TrialTakenError, match=said):
            end(taken)
        record = study.records()[taken.number]
        assert (record.failure, record.metrics) == ("orphaned", {})
    assert claim_next(study).choice == taken.choice


def test_an_end_whose_answer_was_lost_is_no_loss(tmp_path) -> None:
    study = open_small_study(tmp_path)
    claimed = claim_next(study)
    finish_with_latency(claimed, 1.0)
    claimed._tell(TrialState.COMPLETE, [1.0])
    assert study.records()[0].feasible


def test_a_claim_whose_answer_was_lost_is_one_trial(tmp_path, monkeypatch) -> None:
    study = open_small_study(tmp_path)
    create, lost = study._storage.create_new_trial, ["the answer"]

    def answer_is_lost(*args: object) -> int:
        number = create(*args)
        if lost:
            lost.clear()
            raise StorageInternalError("") from OperationalError("", {}, Exception("closed"))
        return number

    monkeypatch.setattr(study._storage, "create_new_trial", answer_is_lost)
    assert claim_next(study).number == 0
    assert len(study.records()) == 1


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_of_the_wall_clock_is_no_work(tmp_path, step: float) -> None:
    open_small_study(tmp_path)
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
    open_small_study(tmp_path)
    hand = Hand()
    study = _joined(tmp_path, hand)
    study.count_from(hand.monotonic - 50.0)
    study.beat()
    assert study.worked_s() == pytest.approx(50.0)


def test_sessions_of_older_versions_are_read(tmp_path) -> None:
    open_small_study(tmp_path)
    hand = Hand()
    study = _joined(tmp_path, hand)
    old = {"host": "elsewhere", "boot": "b", "pid": 1, "start": "1"}
    study._study.set_user_attr("session:0", [100.0, 130.0, old])
    study.beat()
    assert study.worked_s() == pytest.approx(30.0)
    assert study.sweep() == []


def test_time_counts_over_all_sessions(tmp_path) -> None:
    open_small_study(tmp_path)
    hand = Hand()
    first, second = _joined(tmp_path, hand), _joined(tmp_path, hand)
    for seconds in (0.0, 5.0):
        hand.passes(seconds)
        first.beat()
        second.beat()
    assert first.worked_s() == pytest.approx(5.0)
    assert first.worked_s() == pytest.approx(open_small_study(tmp_path).worked_s())
