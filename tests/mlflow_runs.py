"""Read the runs of an MLflow store."""

from __future__ import annotations

from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run


def client_of(place: Path | str) -> MlflowClient:
    """Return a client of the store in a folder, or at a URI."""
    uri = place if isinstance(place, str) else f"sqlite:///{place / 'mlflow.db'}"
    return MlflowClient(uri, uri)


def runs_of(client: MlflowClient, query: str = "") -> list[Run]:
    """Return the runs of all experiments that match ``query``."""
    ids = [e.experiment_id for e in client.search_experiments()]
    return list(client.search_runs(ids, query, max_results=20_000))
