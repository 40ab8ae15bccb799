"""Close the runs of dead processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

import tvmopt
from tvmopt.process import Process
from tvmopt.tracking.store.local_store import is_local_store
from tvmopt.tracking.store.mlflow_store import all_experiment_ids
from tvmopt.tracking.store.runs import log_tags

_ROOT = Path(tvmopt.__file__).parents[1]
# Seconds that ``mlflow run`` takes at most to open its run, and our process to take it over.
_OPENING_S, _TAKING_OVER_S = 60.0, 5.0
_MOST_TOLD = 5


def close_orphans(client: MlflowClient, tell: Callable[[str], None] | None = None) -> list[str]:
    """Mark RUNNING runs of this machine's dead processes as KILLED; return their ids.

    A process is known by boot id, PID namespace, process id and start time, so that a process id
    that was given to another program is not mistaken for it. The host name is no identity: cloned
    machines have the same one. A run of this host name from another boot is closed only when the
    store is a file that no other machine can use; :mod:`tvmopt.tracking.store.heartbeat` closes
    the runs of other machines. A run that ``mlflow run`` opened and that no process of ours took
    over is closed when its ``mlflow run`` is gone.

    Args:
        client: Client of the store.
        tell: Is given one line about runs of this host name that may be dead, or belong to
            another machine.
    """
    experiments, own = all_experiment_ids(client), Process.own()
    dead: list[Run] = []
    unsure: list[Run] = []
    for run in running(client, experiments, "tvmopt.boot", own.boot):
        process = process_of(run.data.tags)
        if process.shares_pids(own) and not process.is_running():
            dead.append(run)
    local = is_local_store(client.tracking_uri)
    for run in running(client, experiments, "tvmopt.host", own.host):
        if process_of(run.data.tags).boot != own.boot:
            (dead if local else unsure).append(run)
    if client.tracking_uri.startswith("sqlite:"):  # a store of this machine
        opened = running(client, experiments, "mlflow.source.type", "PROJECT")
        dead += [run for run in opened if _is_abandoned(run)]
    closed = close_runs(client, dead)
    if unsure and tell is not None:
        tell(_unsure_words(unsure, own.host))
    return closed


def close_runs(client: MlflowClient, runs: Iterable[Run]) -> list[str]:
    """Mark runs as KILLED; return the ids of existing ones."""
    closed = []
    for run in runs:
        with contextlib.suppress(MlflowException):  # deleted meanwhile by someone else
            log_tags(client, run.info.run_id, {"tvmopt.failure_class": "killed"})
            client.set_terminated(run.info.run_id, "KILLED")
            closed.append(run.info.run_id)
    return closed


def running(
    client: MlflowClient, experiments: list[str], tag: str, value: str, comparator: str = "="
) -> list[Run]:
    """Return RUNNING runs whose tag compares so with ``value``."""
    query = f"attributes.status = 'RUNNING' and tags.`{tag}` {comparator} '{value}'"
    return list(client.search_runs(experiments, query))


def _unsure_words(runs: list[Run], name: str) -> str:
    ids = " ".join(run.info.run_id for run in runs[:_MOST_TOLD])
    more = f" and {len(runs) - _MOST_TOLD} more" if len(runs) > _MOST_TOLD else ""
    return (
        f"{len(runs)} run(s) are RUNNING on a machine named {name!r} before its last boot, or on "
        f"another machine of that name: {ids}{more}; when their process is gone, end each with "
        "python -c \"import mlflow; mlflow.MlflowClient().set_terminated('ID', 'KILLED')\""
    )


def process_of(tags: Mapping[str, str]) -> Process:
    """Return the process that a run's tags identify."""
    pid = tags.get("tvmopt.pid", "")
    return Process(
        tags.get("tvmopt.host", ""),
        tags.get("tvmopt.boot", ""),
        int(pid) if pid.isdigit() else 0,
        tags.get("tvmopt.pid_start", ""),
        tags.get("tvmopt.pid_namespace", ""),
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
    """Return the start times of live ``mlflow run`` commands, in seconds since the epoch."""
    found = []
    for process in psutil.process_iter(["cmdline", "create_time"]):
        words = [Path(word).name for word in process.info["cmdline"] or []]
        if "mlflow" in words and "run" in words:
            found.append(float(process.info["create_time"]))
    return found
