"""Find tuning databases of earlier runs on the same machine with the same code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from tvmopt import host
from tvmopt.digest import code_digest
from tvmopt.errors import ArtifactError
from tvmopt.stages.tune_files import DATABASE_DIR, KILLED_STAGE
from tvmopt.tracking.store.stage_run import Session
from tvmopt.tracking.store.trust import checked_artifacts, experiments_to_search, is_own

_MOST = 4


def earlier_databases(session: Session, granularity: str) -> list[Path]:
    """Return folders of the newest databases of one granularity, this experiment's first.

    Each was begun from those before it, so that a few hold what all know. A stage that was killed
    leaves what it had measured. Whether a database is for the same target and threads is checked
    where it is read, and the granularity once more.
    """
    asked = (
        f"and tags.`tvmopt.fingerprint` = '{host.fingerprint()}' "
        f"and tags.`tvmopt.code` = '{code_digest()}' "
        f"and tags.`tvmopt.granularity` = '{granularity}'"
    )
    queries = (
        f"attributes.status = 'FINISHED' and tags.`tvmopt.stage` = 'tune' {asked}",
        f"attributes.status != 'RUNNING' and tags.`tvmopt.stage` = '{KILLED_STAGE}' {asked}",
    )
    client = session.client
    own = _newest(client, [session.experiment], queries)
    every = _newest(client, experiments_to_search(client, session.experiment), queries)
    found: list[Path] = []
    for run in {run.info.run_id: run for run in [*own, *every]}.values():
        if len(found) == _MOST:
            break
        try:
            stage = run.data.tags["tvmopt.stage"]
            folder = checked_artifacts(client, run, stage, session.work_dir)
        except (MlflowException, ArtifactError):  # deleted meanwhile, damaged, or not signed
            continue
        if (folder / DATABASE_DIR).is_dir():
            found.append(folder / DATABASE_DIR)
    return found


def _newest(client: MlflowClient, experiments: list[str], queries: Sequence[str]) -> list[Run]:
    order = ["attributes.start_time DESC"]
    runs = [
        run
        for query in queries
        for run in client.search_runs(experiments, query, max_results=2 * _MOST, order_by=order)
        if is_own(run)
    ]
    return sorted(runs, key=lambda run: -run.info.start_time)
