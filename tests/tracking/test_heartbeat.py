"""Heartbeats close runs of commands on dead machines, and no other runs."""

from __future__ import annotations

import dataclasses
import time

import pytest
from mlflow import MlflowClient

from tests.mlflow_runs import client_of
from tvmopt.process import Process
from tvmopt.tracking.store import heartbeat
from tvmopt.tracking.store.heartbeat import BEATS, Others
from tvmopt.tracking.store.runs import user

OWN = Process.own()
SILENT_S = 0.3


@pytest.fixture(scope="module")
def client(store_uri) -> MlflowClient:
    return client_of(store_uri)


@pytest.fixture
def make(client, tmp_path):
    """Make a RUNNING run of a process; remaining runs are deleted at the end."""
    experiment, made = client.create_experiment(str(tmp_path)), []

    def run(process: Process, name: str = user(), **more: str) -> str:
        tags = {
            "tvmopt.host": process.host, "tvmopt.boot": process.boot,
            "tvmopt.pid": str(process.pid), "tvmopt.pid_start": process.start,
            "tvmopt.pid_namespace": process.namespace, "mlflow.user": name, **more,
        }  # fmt: skip
        made.append(client.create_run(experiment, tags=tags).info.run_id)
        return made[-1]

    yield run
    for run_id in made:
        client.delete_run(run_id)


def _elsewhere(pid: int) -> Process:
    return Process("pod", "another boot", pid, "77", "4026531836")


def _status(client: MlflowClient, run_id: str) -> str:
    return client.get_run(run_id).info.status


def test_runs_of_a_silent_process_elsewhere_are_closed(client, make) -> None:
    gone, lives = _elsewhere(1), _elsewhere(2)
    dead = [make(gone, **{BEATS: "4"}), make(gone), make(gone, "another user")]  # with its stages
    beating = make(lives, **{BEATS: "4"})
    others = [
        beating,
        make(lives),
        make(_elsewhere(3)),  # a run of a version without heartbeats
        make(_elsewhere(4), "another user", **{BEATS: "1"}),
        make(dataclasses.replace(OWN), **{BEATS: "1"}),
    ]
    watch, closed, beats = Others(client, SILENT_S), [], 4
    end = time.monotonic() + 60
    while not closed and time.monotonic() < end:
        closed = watch.look()
        beats += 1
        client.set_tag(beating, BEATS, str(beats))
        time.sleep(0.1)
    assert sorted(closed) == sorted(dead)
    assert {_status(client, run_id) for run_id in dead} == {"KILLED"}
    assert {_status(client, run_id) for run_id in others} == {"RUNNING"}
    assert watch.undecided == set()  # so that no command checks again
    assert watch.look() == []


def test_one_look_closes_nothing(client, make) -> None:
    make(_elsewhere(1), **{BEATS: "4"})
    watch = Others(client, SILENT_S)
    time.sleep(2 * SILENT_S)
    assert watch.look() == []
    assert watch.undecided == {_elsewhere(1)}


def test_a_command_beats_while_its_body_runs(client, make, monkeypatch) -> None:
    monkeypatch.setattr(heartbeat, "_LOOK_S", 0.02)
    run_id = make(OWN)
    with heartbeat.heartbeat(client, run_id):
        end = time.monotonic() + 30
        while int(client.get_run(run_id).data.tags.get(BEATS, "0")) < 3:
            assert time.monotonic() < end
            time.sleep(0.05)
    last = client.get_run(run_id).data.tags[BEATS]
    time.sleep(0.3)
    assert client.get_run(run_id).data.tags[BEATS] == last


def test_a_store_that_is_away_ends_no_heartbeat(make, client, monkeypatch) -> None:
    from mlflow.exceptions import MlflowException

    monkeypatch.setattr(heartbeat, "_LOOK_S", 0.02)
    asked: list[str] = []

    def refuse(*args: object) -> None:
        asked.append("asked")
        if len(asked) < 3:
            raise MlflowException("away")

    monkeypatch.setattr(heartbeat, "log_tags", refuse)
    with heartbeat.heartbeat(client, make(OWN)):
        end = time.monotonic() + 30
        while len(asked) < 5:
            assert time.monotonic() < end
            time.sleep(0.05)
