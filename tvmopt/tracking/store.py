"""The tracking store: one absolute URI, a schema made once, experiments created without a race."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException

from tvmopt.search.urls import has_secret, masked_url
from tvmopt.tracking.exclusive import alone

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


def how_to_look(uri: str) -> str:
    """What opens the UI of a store, as a line to copy; secrets in the URI are not shown."""
    if uri.startswith(("http:", "https:")):
        return f"open {masked_url(uri)}"
    shown = '"$MLFLOW_TRACKING_URI"' if has_secret(uri) else uri
    return f"mlflow ui --backend-store-uri {shown}"


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
    # MLflow checks and creates without a lock, or under one whose name in /tmp anybody can guess:
    # it empties the file that a link of that name points to.
    from mlflow.store.db.utils import (
        _all_tables_exist,
        _initialize_tables,
        create_sqlalchemy_engine_with_retry,
    )
    from mlflow.store.model_registry.dbmodels import models as _registry  # noqa: F401
    from mlflow.store.tracking.dbmodels import models as _tracking  # noqa: F401

    def create(at: str) -> None:
        engine = create_sqlalchemy_engine_with_retry(at)
        try:
            if not _all_tables_exist(engine):
                _initialize_tables(engine)
        finally:
            engine.dispose()

    file = Path(uri.removeprefix(_SQLITE))
    with alone(f"the schema of {uri}"):
        if uri.startswith(_SQLITE + "/") and file.parent.is_dir() and not file.exists():
            # A process that is killed in a migration leaves a database that no migration takes
            # any more: the file gets its name when it is complete.
            with tempfile.TemporaryDirectory(prefix=".tvmopt-schema-", dir=file.parent) as folder:
                draft = Path(folder) / file.name
                create(f"{_SQLITE}{draft}")
                with suppress(OSError):  # somebody was faster, or there are no hard links here
                    os.link(draft, file)
        create(uri)
