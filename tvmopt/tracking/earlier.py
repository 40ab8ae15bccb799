"""Tuning databases of earlier runs that may serve a new one: same machine, same code."""

from __future__ import annotations

from pathlib import Path

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from tvmopt import host
from tvmopt.digest import code_digest
from tvmopt.stages.tune import DATABASE_DIR
from tvmopt.tracking.artifacts import is_intact, local_artifacts
from tvmopt.tracking.stage_run import Session
from tvmopt.tracking.store import all_experiment_ids

_MOST = 4


def earlier_databases(session: Session, granularity: str) -> list[Path]:
    """Folders of the newest databases of one granularity, those of this experiment first.

    Each was begun from those before it, so that a few hold what all know. Whether one is for the
    same target and threads is checked where it is read, and the granularity once more.
    """
    query = (
        "attributes.status = 'FINISHED' and tags.`tvmopt.stage` = 'tune' "
        f"and tags.`tvmopt.fingerprint` = '{host.fingerprint()}' "
        f"and tags.`tvmopt.code` = '{code_digest()}' "
        f"and tags.`tvmopt.granularity` = '{granularity}'"
    )
    client = session.client
    own = _newest(client, [session.experiment], query)
    every = _newest(client, all_experiment_ids(client), query)
    found: list[Path] = []
    for run_id in dict.fromkeys([*own, *every]):
        if len(found) == _MOST:
            break
        try:
            folder = local_artifacts(client, run_id, session.work_dir)
        except MlflowException:  # deleted meanwhile
            continue
        if (folder / DATABASE_DIR).is_dir() and is_intact(folder):
            found.append(folder / DATABASE_DIR)
    return found


def _newest(client: MlflowClient, experiments: list[str], query: str) -> list[str]:
    order = ["attributes.start_time DESC"]
    runs = client.search_runs(experiments, query, max_results=2 * _MOST, order_by=order)
    return [run.info.run_id for run in runs]
