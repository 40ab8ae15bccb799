"""Plugin of MLflow: its own commands begin a SQLite store under the lock of ours.

``mlflow run`` opens the store before a process of ours starts. Where this project is installed, the
entry points ``mlflow.tracking_store`` and ``mlflow.model_registry_store`` have MLflow call the
functions here for ``sqlite:`` URIs. They give MLflow's own stores.

This module is no part of the package ``tvmopt`` and imports it for a fresh store only: a saved
model brings a ``tvmopt`` of its own, which MLflow could not load after another one was imported.
MLflow imports this module while it is being imported itself, so nothing of it is imported above.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

REPLICA_VARIABLE = "_MLFLOW_SERVER_READ_REPLICA_BACKEND_STORE"
"""``READ_REPLICA_BACKEND_STORE_URI_ENV_VAR`` of MLflow, whose import takes half a second."""


def tracking_store(store_uri: str, artifact_uri: str | None = None) -> Any:
    """MLflow's tracking store at ``store_uri``."""
    if _has_replica():
        from mlflow.server.handlers import TrackingStoreRegistryWrapper as Registry

        build: Any = Registry._get_sqlalchemy_store
    else:
        from mlflow.tracking._tracking_service.utils import _get_sqlalchemy_store as build
    return _build(store_uri, lambda: build(store_uri, artifact_uri))


def registry_store(store_uri: str) -> Any:
    """MLflow's registry of models at ``store_uri``."""
    if _has_replica():
        from mlflow.server.handlers import ModelRegistryStoreRegistryWrapper as Registry

        build: Any = Registry._get_sqlalchemy_store
    else:
        from mlflow.tracking._model_registry.utils import _get_sqlalchemy_store as build
    return _build(store_uri, lambda: build(store_uri))


def _build(uri: str, build: Callable[[], Any]) -> Any:
    if _is_complete(uri):
        return build()
    try:
        from tvmopt.tracking.store.schema import build_store
    except ImportError:  # of packages that tvmopt refuses; MLflow can do without
        return build()
    return build_store(uri, build)


def _is_complete(uri: str) -> bool:
    """Whether a SQLite store has its default experiment, which MLflow makes last."""
    from sqlalchemy import make_url

    path = Path(make_url(uri).database or "")
    if not path.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            query = "select 1 from experiments where experiment_id = 0"
            return database.execute(query).fetchone() is not None
    except sqlite3.Error:  # no schema yet, or none of MLflow's
        return False


def _has_replica() -> bool:
    """Whether MLflow's server reads from a replica, which its own function adds to the store."""
    return REPLICA_VARIABLE in os.environ
