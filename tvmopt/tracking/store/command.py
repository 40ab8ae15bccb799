"""Context of one command: tracking store, cleanup of dead runs, own run, working folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mlflow import MlflowClient

from tvmopt.scratch import scratch_folder, sweep
from tvmopt.stages.launch import UNLIMITED
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.heartbeat import heartbeat
from tvmopt.tracking.store.mlflow_store import experiment_id, is_fresh, open_on_runs, open_store
from tvmopt.tracking.store.orphans import close_orphans
from tvmopt.tracking.store.runs import open_run
from tvmopt.tracking.store.stage_run import Session


@contextmanager
def looking(model_name: str, *, use_cache: bool = True) -> Iterator[Session]:
    """Open a session that only looks at what is there: no run, no new experiment."""
    client = open_store()
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or model_name
    run_id, experiment = os.environ.get("MLFLOW_RUN_ID"), os.environ.get("MLFLOW_EXPERIMENT_ID")
    if run_id:
        experiment = client.get_run(run_id).info.experiment_id
    elif not experiment:
        known = client.get_experiment_by_name(name)
        experiment = "" if known is None else known.experiment_id
    with scratch_folder() as folder:
        yield Session(
            client, str(experiment), run_id or "", {}, use_cache and bool(experiment), folder, 1
        )


@contextmanager
def command(
    entry: str,
    model_name: str,
    params: Mapping[str, object],
    *,
    use_cache: bool = True,
    threads: int = 1,
    allow: Callable[[], Allowance] = lambda: UNLIMITED,
) -> Iterator[Session]:
    """Open the run of one command.

    The run is the one that ``mlflow run`` opened (``MLFLOW_RUN_ID``), or a new one in the
    experiment that the environment names, else in the experiment of the model.
    """
    fresh = is_fresh()
    client = open_store()
    if fresh:
        say(f"store      {client.tracking_uri} is new; MLFLOW_TRACKING_URI names another one")
    sweep(Path(tempfile.gettempdir()))  # here as well: not every caller is a command line
    close_orphans(client, say)
    run_id = os.environ.pop("MLFLOW_RUN_ID", None)
    experiment = _experiment(client, run_id, model_name)
    open_on_runs(client, experiment)
    shown = {k: v for k, v in params.items() if v is not None and str(v)}
    with (
        scratch_folder() as folder,
        open_run(
            client,
            experiment,
            f"{entry}-{model_name}",
            shown,
            {"tvmopt.entry_point": entry, "tvmopt.model_name": model_name},
            run_id=run_id,
        ) as own,
        heartbeat(client, own),
    ):
        yield Session(client, experiment, own, shown, use_cache, folder, threads, allow)
    close_orphans(client)  # those that were too young to be told from living ones


def _experiment(client: MlflowClient, run_id: str | None, model_name: str) -> str:
    if run_id:
        return str(client.get_run(run_id).info.experiment_id)
    if os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return os.environ["MLFLOW_EXPERIMENT_ID"]
    return experiment_id(client, os.environ.get("MLFLOW_EXPERIMENT_NAME") or model_name)
