"""Runs that a dead process left RUNNING are closed, and no other runs."""

from __future__ import annotations

import dataclasses
import os
import platform
import subprocess
import sys
import time
from collections import namedtuple

import pytest
from mlflow import MlflowClient

from tests.mlflow_runs import client_of
from tvmopt import host
from tvmopt.process import Process
from tvmopt.tracking.store import local_store, orphans
from tvmopt.tracking.store.runs import open_run

OURS = {
    "mlflow.source.type": "PROJECT",
    "mlflow.source.name": orphans._ROOT.as_uri(),
}


@pytest.fixture(scope="module")
def client(store_uri) -> MlflowClient:
    return client_of(store_uri)


@pytest.fixture
def make(client, monkeypatch, tmp_path):
    """Make a RUNNING run with tags and an age in seconds."""
    experiment = client.create_experiment(str(tmp_path))
    monkeypatch.setattr(orphans, "_starts_of_mlflow_run", list)

    def run(age_s: float = 100.0, **tags: str) -> str:
        named = {name.replace("__", "."): value for name, value in tags.items()}
        began = int((time.time() - age_s) * 1e3)
        return client.create_run(experiment, start_time=began, tags=named).info.run_id

    return run


def _tags(process: Process) -> dict[str, str]:
    return {
        "tvmopt__host": process.host, "tvmopt__boot": process.boot,
        "tvmopt__pid": str(process.pid), "tvmopt__pid_start": process.start,
        "tvmopt__pid_namespace": process.namespace,
    }  # fmt: skip


OWN = Process.own()
EARLIER = dataclasses.replace(OWN, boot="an earlier boot, or a clone")


@pytest.mark.parametrize("local", [True, False], ids=["file", "server"])
def test_runs_of_dead_processes_are_closed_and_those_of_living_ones_are_not(
    client, make, monkeypatch, local: bool
) -> None:
    monkeypatch.setattr(orphans, "is_local_store", lambda uri: local)
    ended = dataclasses.replace(OWN, start="1")
    without = {k: v for k, v in _tags(ended).items() if k != "tvmopt__pid_namespace"}
    dead = [make(**_tags(ended)), make(**without)]
    living = [
        make(**_tags(OWN)),
        make(**_tags(dataclasses.replace(ended, namespace="1"))),  # a container
        make(**_tags(Process("elsewhere", "b", 1, "1", "1"))),
    ]
    unsure = [make(**_tags(EARLIER)), make(tvmopt__host=OWN.host)]
    (dead if local else living).extend(unsure)
    said: list[str] = []
    assert sorted(orphans.close_orphans(client, said.append)) == sorted(dead)
    for run_id in dead:
        run = client.get_run(run_id)
        assert (run.info.status, run.data.tags["tvmopt.failure_class"]) == ("KILLED", "killed")
    assert {client.get_run(run_id).info.status for run_id in living} == {"RUNNING"}
    if local:
        assert said == []
    else:
        [line] = said
        assert line.startswith(f"2 run(s) are RUNNING on a machine named {OWN.host!r} before")
        assert all(run_id in line for run_id in unsure)
        assert "\n" not in line and "set_terminated" in line
    for run_id in living:
        client.delete_run(run_id)


@pytest.mark.parametrize(
    ("kind", "local"), [("ext4", True), ("tmpfs", True), ("nfs4", False), ("fuse.sshfs", False)]
)
def test_a_file_on_a_network_mount_is_not_of_this_machine_alone(
    monkeypatch, tmp_path, kind: str, local: bool
) -> None:
    Mount = namedtuple("Mount", "mountpoint fstype")
    mounts = [Mount("/", "ext4"), Mount(str(tmp_path), "xfs"), Mount(str(tmp_path), kind)]
    monkeypatch.setattr(local_store.psutil, "disk_partitions", lambda all: mounts)
    assert local_store.is_local_store(f"sqlite:///{tmp_path / 'a' / 'mlflow.db'}") == local
    assert not local_store.is_local_store("postgresql://host/runs")
    assert not local_store.is_local_store("http://127.0.0.1:5000")


def test_a_run_that_nobody_took_over_is_closed_when_its_command_is_gone(
    client, make, monkeypatch
) -> None:
    ours = {name.replace(".", "__"): value for name, value in OURS.items()}
    abandoned = make(100.0, **ours)
    young = make(1.0, **ours)
    foreign = make(100.0, **{**ours, "mlflow__source__name": "file:///another/project"})
    begun, about_to_be_ours = make(50.0, **ours), make(200.0, **ours)
    monkeypatch.setattr(orphans, "_starts_of_mlflow_run", lambda: [time.time() - 52.0])
    monkeypatch.setenv("MLFLOW_RUN_ID", about_to_be_ours)
    assert orphans.close_orphans(client) == [abandoned]
    for run_id in (young, foreign, begun, about_to_be_ours):
        assert client.get_run(run_id).info.status == "RUNNING"
        client.delete_run(run_id)


def test_commands_are_seen() -> None:
    before = time.time()
    script = "import time; time.sleep(60)"
    command = subprocess.Popen([sys.executable, "-c", script, "/some/bin/mlflow", "run", "."])
    try:
        found = [start for start in orphans._starts_of_mlflow_run() if start > before - 2]
        assert len(found) >= 1
    finally:
        command.kill()
        command.wait()


def test_a_run_that_was_closed_too_early_is_running_again(client, make) -> None:
    run_id = make(100.0)
    client.set_terminated(run_id, "KILLED")
    with open_run(client, "unused", "name", {}, {}, run_id=run_id):
        assert client.get_run(run_id).info.status == "RUNNING"
        tags = client.get_run(run_id).data.tags
        assert tags["tvmopt.pid"] == str(os.getpid())
        assert (tags["tvmopt.host"], tags["tvmopt.boot"]) == (platform.node(), host.boot_id())
    assert client.get_run(run_id).info.status == "FINISHED"
