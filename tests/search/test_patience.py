"""Retries when the study database is unavailable, and a one-line error after the time limit."""

from __future__ import annotations

import sqlite3
import threading
import time

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import IntegrityError, OperationalError

from tvmopt.errors import StudyAwayError
from tvmopt.search import patience
from tvmopt.search.patience import patient
from tvmopt.search.study import open_study

from .small_study import BUDGET, DECLARATION, claim_next, finish_with_latency


def _error(kind: type[Exception]) -> StorageInternalError:
    error = StorageInternalError("An exception is raised during the commit.")
    error.__cause__ = kind("select 1", {}, Exception("server closed the connection"))
    return error


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    """Record pauses; time advances only by them."""
    pauses: list[float] = []
    monkeypatch.setattr(patience.time, "sleep", pauses.append)
    monkeypatch.setattr(patience.time, "monotonic", lambda: sum(pauses))
    return pauses


def test_it_is_asked_again_until_it_answers(slept) -> None:
    answers = [_error(OperationalError), _error(OperationalError), None]

    @patient
    def ask(word: str) -> str:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return word

    assert ask("here") == "here"
    assert slept == [0.25, 0.5]


def test_what_stays_away_is_one_line(slept) -> None:
    @patient
    def ask() -> None:
        raise _error(OperationalError)

    said = "for 60 s: server closed the connection; cure that"
    with pytest.raises(StudyAwayError, match=said) as caught:
        ask()
    assert "\n" not in str(caught.value)
    assert 45 < sum(slept) <= 60


def test_a_full_disk_is_one_line_at_once(slept) -> None:
    full = sqlite3.OperationalError("database or disk is full")

    @patient
    def ask() -> None:
        raise StorageInternalError("") from OperationalError("insert", {}, full)

    with pytest.raises(StudyAwayError, match="refused: database or disk is full; cure that"):
        ask()
    assert slept == []


def test_what_no_waiting_cures_is_raised_at_once(slept) -> None:
    @patient
    def ask() -> None:
        raise _error(IntegrityError)

    with pytest.raises(StorageInternalError):
        ask()
    assert slept == []


def test_work_goes_on_when_the_database_was_locked_for_a_while(tmp_path) -> None:
    file = tmp_path / "studies.db"
    options = {"connect_args": {"timeout": 0.05}}
    storage = optuna.storages.RDBStorage(f"sqlite:///{file}", engine_kwargs=options)
    study = open_study(storage, "s", DECLARATION, BUDGET)
    study.beat()
    holder = sqlite3.connect(file, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")  # no other connection can read or write
    release = threading.Timer(1.5, holder.rollback)
    release.start()
    began = time.monotonic()
    study.beat()
    assert time.monotonic() - began > 1.0
    release.join()
    holder.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(1.0, holder.rollback)
    release.start()
    finish_with_latency(claim_next(study), 1.0)
    release.join()
    holder.close()
    assert [r.feasible for r in study.records()] == [True]
