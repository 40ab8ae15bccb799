"""What is gone from MLflow's store, and a store that does not answer, are not the same."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import mlflow.artifacts
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    INVALID_PARAMETER_VALUE,
    RESOURCE_DOES_NOT_EXIST,
    TEMPORARILY_UNAVAILABLE,
)

from tests.mlflow_runs import client_of
from tests.tracking.records import CHOICES, record
from tvmopt.errors import ConfigError
from tvmopt.tracking.pipeline import profile, workflow
from tvmopt.tracking.registry import versions
from tvmopt.tracking.search import entry_points
from tvmopt.tracking.search.finals import are_intact

AWAY = MlflowException("the database is locked", TEMPORARILY_UNAVAILABLE)
GONE = MlflowException("no such run", RESOURCE_DOES_NOT_EXIST)
INVALID = MlflowException("not an id", INVALID_PARAMETER_VALUE)
VERSION = SimpleNamespace(name="m", version="1", tags={"build_run": "b"})


def _session(error: Exception) -> SimpleNamespace:
    def get_run(run_id: str) -> None:
        raise error

    return SimpleNamespace(client=SimpleNamespace(get_run=get_run))


@pytest.mark.parametrize("error", [AWAY, ConnectionError("refused")])
def test_a_store_that_does_not_answer_leaves_a_version_in_doubt(monkeypatch, error):
    """To say no would register the same model again."""

    def listed(uri: str) -> None:
        raise error

    monkeypatch.setattr(mlflow.artifacts, "list_artifacts", listed)
    with pytest.raises(type(error), match=str(error)):
        versions._is_there(VERSION)


def test_a_version_without_files_is_not_there(monkeypatch):
    def listed(uri: str) -> None:
        raise GONE

    monkeypatch.setattr(mlflow.artifacts, "list_artifacts", listed)
    assert not versions._is_there(VERSION)
    monkeypatch.setattr(mlflow.artifacts, "list_artifacts", lambda uri: [])
    assert not versions._is_there(VERSION)


@pytest.mark.parametrize("error", [GONE, INVALID])
def test_a_run_that_is_gone(error):
    session = _session(error)
    assert profile._tune_run(session, VERSION) == ""
    job = SimpleNamespace(session=session, study=SimpleNamespace(parent_run="p"))
    assert not entry_points._stands(job)
    with pytest.raises(ConfigError, match="warm_start must be the id of a tune run"):
        workflow._tune_run(session, None, "r")


def test_a_store_that_does_not_answer_has_no_missing_run():
    session = _session(AWAY)
    with pytest.raises(MlflowException, match="locked"):
        profile._tune_run(session, VERSION)
    with pytest.raises(MlflowException, match="locked"):
        entry_points._stands(SimpleNamespace(session=session, study=SimpleNamespace(parent_run="")))
    with pytest.raises(MlflowException, match="locked"):
        workflow._tune_run(session, None, "r")


def test_what_a_store_says_of_an_id_that_it_does_not_have(tmp_path, make_store):
    make_store(tmp_path)
    session = SimpleNamespace(client=client_of(tmp_path))
    for run_id in ("", "no id at all", "0" * 32):
        version = SimpleNamespace(tags={"build_run": run_id})
        assert profile._tune_run(session, version) == ""


_TRIAL = dataclasses.replace(
    record(1, CHOICES[0], 2.0), stages={"convert": "1", "build": "2", "evaluate": "3"}
)


def test_a_trial_whose_run_is_gone_takes_no_part_in_the_last_round() -> None:
    assert not are_intact(_session(GONE), _TRIAL)


def test_a_store_that_does_not_answer_takes_no_trial_from_the_last_round() -> None:
    with pytest.raises(MlflowException, match="the database is locked"):
        are_intact(_session(AWAY), _TRIAL)
