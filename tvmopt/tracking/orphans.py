"""Runs of processes that died: nobody else will ever say that they have ended."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from tvmopt.process import Process
from tvmopt.tracking.runs import log_tags
from tvmopt.tracking.store import all_experiment_ids

_ROOT = Path(__file__).parents[2]
# Seconds that ``mlflow run`` takes at most to open its run, and our process to take it over.
_OPENING_S, _TAKING_OVER_S = 60.0, 5.0


def close_orphans(client: MlflowClient) -> list[str]:
    """Mark runs KILLED that a process of this machine left RUNNING when it died; returns their ids.

    A process is known by host, boot, process id and start time, so that a process id that was given
    to another program is not mistaken for it. A run that ``mlflow run`` opened and that no process
    of ours ever took over is closed when its ``mlflow run`` is gone.
    """
    experiments = all_experiment_ids(client)
    query = f"attributes.status = 'RUNNING' and tags.`tvmopt.host` = '{platform.node()}'"
    dead = [
        run
        for run in client.search_runs(experiments, query)
        if not _process(run.data.tags).is_alive(0.0)
    ]
    if client.tracking_uri.startswith("sqlite:"):  # a store of this machine
        query = "attributes.status = 'RUNNING' and tags.`mlflow.source.type` = 'PROJECT'"
        dead += [run for run in client.search_runs(experiments, query) if _is_abandoned(run)]
    closed = []
    for run in dead:
        with contextlib.suppress(MlflowException):  # deleted meanwhile by someone else
            log_tags(client, run.info.run_id, {"tvmopt.failure_class": "killed"})
            client.set_terminated(run.info.run_id, "KILLED")
            closed.append(run.info.run_id)
    return closed


def _process(tags: Mapping[str, str]) -> Process:
    pid = tags.get("tvmopt.pid", "")
    return Process(
        tags["tvmopt.host"],
        tags.get("tvmopt.boot", ""),
        int(pid) if pid.isdigit() else 0,
        tags.get("tvmopt.pid_start", ""),
    )


def _is_abandoned(run: Run) -> bool:
    tags, began = run.data.tags, run.info.start_time / 1e3
    if "tvmopt.host" in tags or tags.get("mlflow.source.name") != _ROOT.as_uri():
        return False
    if run.info.run_id == os.environ.get("MLFLOW_RUN_ID"):  # about to be taken over by us
        return False
    if time.time() - began < _TAKING_OVER_S:
        return False
    return not any(0 <= began - start + 1 <= _OPENING_S for start in _starts_of_mlflow_run())


def _starts_of_mlflow_run() -> list[float]:
    """When the ``mlflow run`` commands that live began, in seconds since the epoch."""
    found = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        words = [Path(word).name for word in process.info["cmdline"] or []]
        if "mlflow" in words and "run" in words:
            found.append(float(process.info["create_time"]))
    return found
