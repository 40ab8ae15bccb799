"""The tracking store: one absolute URI, a schema made once, experiments created without a race."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException

_SQLITE = "sqlite:///"
# Makes the UI open the experiment on its runs, not on traces of language models.
_KIND_TAG, _KIND = "mlflow.experimentKind", "custom_model_development"
_DATABASES = ("sqlite:", "postgresql:", "postgresql+", "mysql:", "mysql+", "mssql:", "mssql+")


def open_store() -> MlflowClient:
    """Resolve the tracking URI, prepare the store and return a client for it.

    The URI is MLflow's own choice (environment, else SQLite in the working directory), made
    absolute and put back into the environment, so that child processes in other folders use the
    same store. A fresh database gets its schema under a lock, and a fresh SQLite file its name when
    it is complete: several processes that create it at once would ruin it, and so would a kill.
    """
    if not sys.stderr.isatty():
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    uri = tracking_uri()
    mlflow.set_tracking_uri(uri)
    os.environ["MLFLOW_TRACKING_URI"] = uri
    if uri.startswith(_DATABASES):
        _create_schema(uri)
    return MlflowClient(uri)


def tracking_uri() -> str:
    """URI of the store that MLflow would use now, made absolute."""
    return absolute_uri(mlflow.get_tracking_uri())


def absolute_uri(uri: str) -> str:
    """Make the path in a SQLite URI absolute; other URIs are returned as they are."""
    if not uri.startswith(_SQLITE):
        return uri
    path = uri.removeprefix(_SQLITE)
    if not path or path.startswith(("/", ":memory:")):
        return uri
    return f"{_SQLITE}{Path(path).resolve()}"


def experiment_id(client: MlflowClient, name: str) -> str:
    """Id of the experiment ``name``, created or restored when needed; safe in several processes."""
    for _ in range(3):
        found = client.get_experiment_by_name(name)
        if found is not None:
            if found.lifecycle_stage == "deleted":
                client.restore_experiment(found.experiment_id)
            return str(found.experiment_id)
        try:
            location = _artifact_location(client, name)
            return str(client.create_experiment(name, location, {_KIND_TAG: _KIND}))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
    raise MlflowException(f"experiment {name!r} is created and deleted by someone else meanwhile")


def all_experiment_ids(client: MlflowClient) -> list[str]:
    """Ids of all active experiments."""
    found: list[str] = []
    token = None
    while True:
        page = client.search_experiments(view_type=ViewType.ACTIVE_ONLY, page_token=token)
        found += [str(e.experiment_id) for e in page]
        token = page.token
        if not token:
            return found


def _artifact_location(client: MlflowClient, name: str) -> str | None:
    # MLflow would put the artifacts below the working directory, wherever the database is.
    if not client.tracking_uri.startswith(_SQLITE + "/"):
        return None
    folder = Path(client.tracking_uri.removeprefix(_SQLITE)).parent
    if folder == Path.cwd():
        return None
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return (folder / "mlruns" / f"{safe}-{uuid.uuid4().hex[:8]}").as_uri()


def _create_schema(uri: str) -> None:
    # MLflow's own lock-and-create, which its tracking store does not use (it checks and creates
    # without the lock).
    from mlflow.store.db.utils import (
        _initialize_tables,
        _safe_initialize_tables,
        create_sqlalchemy_engine_with_retry,
    )
    from mlflow.store.model_registry.dbmodels import models as _registry  # noqa: F401
    from mlflow.store.tracking.dbmodels import models as _tracking  # noqa: F401

    def create(at: str, initialise: Callable[[Any], None]) -> None:
        engine = create_sqlalchemy_engine_with_retry(at)
        try:
            initialise(engine)
        finally:
            engine.dispose()

    file = Path(uri.removeprefix(_SQLITE))
    if uri.startswith(_SQLITE + "/") and file.parent.is_dir() and not file.exists():
        # A process that is killed in a migration leaves a database that no migration takes any
        # more: the file gets its name when it is complete.
        with tempfile.TemporaryDirectory(prefix=".tvmopt-schema-", dir=file.parent) as folder:
            draft = Path(folder) / file.name
            create(f"{_SQLITE}{draft}", _initialize_tables)
            with suppress(OSError):  # another process was faster, or there are no hard links here
                os.link(draft, file)
    create(uri, _safe_initialize_tables)
