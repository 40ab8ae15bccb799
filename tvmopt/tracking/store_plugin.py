"""Plugin of MLflow: every ``mlflow`` command opens SQLite stores through :mod:`.schema`.

``mlflow run`` opens the store before a process of ours starts. Where this package is installed,
the entry points ``mlflow.tracking_store`` and ``mlflow.model_registry_store`` have MLflow call the
functions here for ``sqlite:`` URIs. They give MLflow's own stores.

MLflow imports this module while it is being imported itself, so nothing of it is imported above.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tvmopt.tracking.schema import build_store

if TYPE_CHECKING:
    from mlflow.store.model_registry.abstract_store import AbstractStore as RegistryStore
    from mlflow.store.tracking.abstract_store import AbstractStore as TrackingStore


def tracking_store(store_uri: str, artifact_uri: str | None = None) -> TrackingStore:
    """MLflow's tracking store at ``store_uri``."""
    if _has_replica():
        from mlflow.server.handlers import TrackingStoreRegistryWrapper as Registry

        build: Any = Registry._get_sqlalchemy_store
    else:
        from mlflow.tracking._tracking_service.utils import _get_sqlalchemy_store as build
    return build_store(store_uri, lambda: build(store_uri, artifact_uri))


def registry_store(store_uri: str) -> RegistryStore:
    """MLflow's registry of models at ``store_uri``."""
    if _has_replica():
        from mlflow.server.handlers import ModelRegistryStoreRegistryWrapper as Registry

        build: Any = Registry._get_sqlalchemy_store
    else:
        from mlflow.tracking._model_registry.utils import _get_sqlalchemy_store as build
    return build_store(store_uri, lambda: build(store_uri))


def _has_replica() -> bool:
    """Whether MLflow's server reads from a replica, which its own function adds to the store."""
    from mlflow.server.constants import READ_REPLICA_BACKEND_STORE_URI_ENV_VAR

    return READ_REPLICA_BACKEND_STORE_URI_ENV_VAR in os.environ
