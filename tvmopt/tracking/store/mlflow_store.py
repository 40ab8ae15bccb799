"""Open the tracking store: absolute URI, schema created once, experiments without a race."""

from __future__ import annotations

import os
import re
import sys
import uuid
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking._tracking_service.utils import _get_sqlalchemy_store

from tvmopt.search.urls import has_secret, masked_url
from tvmopt.tracking.store.schema import SQLITE, absolute_uri, build_store, sqlite_file

# Makes the UI open the experiment on its runs, not on traces of language models; MLflow 3.17 asks
# the browser instead, see runs_page.
_KIND_TAG, _KIND = "mlflow.experimentKind", "custom_model_development"
_SERVERS = ("http:", "https:")
_UI = "http://127.0.0.1:5000"  # where `mlflow ui` listens
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
        build_store(uri, lambda: _get_sqlalchemy_store(uri, None))
    return MlflowClient(uri)


def tracking_uri() -> str:
    """Return the absolute URI of MLflow's current store."""
    return absolute_uri(mlflow.get_tracking_uri())


def is_fresh() -> bool:
    """Return whether MLflow's current store is a SQLite file that is yet to be made."""
    file = sqlite_file(tracking_uri())
    return file is not None and not file.exists()


def ui_command(uri: str) -> str:
    """Return the command that starts the UI, with secrets of the URI masked; empty for a server."""
    if uri.startswith(_SERVERS):
        return ""
    shown = '"$MLFLOW_TRACKING_URI"' if has_secret(uri) else uri
    return f"mlflow ui --backend-store-uri {shown}"


def runs_page(uri: str, experiment: str) -> str:
    """Return the URL of an experiment's runs in the UI, with secrets masked.

    Without the workflow in the URL, MLflow 3.17 shows a browser that is new to it the page for
    language models, whatever the experiment is tagged with.
    """
    server = masked_url(uri).rstrip("/") if uri.startswith(_SERVERS) else _UI
    return f"{server}/#/experiments/{experiment}/runs?workflowType=machine_learning"


def experiment_id(client: MlflowClient, name: str) -> str:
    """Return the id of experiment ``name``; create or restore it, safely in parallel."""
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


def open_on_runs(client: MlflowClient, experiment: str) -> None:
    """Make the UI open an experiment on its runs, unless somebody chose another page.

    An experiment that ``mlflow run --experiment-name`` has made would open on traces.
    """
    if _KIND_TAG not in client.get_experiment(experiment).tags:
        client.set_experiment_tag(experiment, _KIND_TAG, _KIND)


def all_experiment_ids(client: MlflowClient) -> list[str]:
    """Return the ids of all active experiments."""
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
    if not client.tracking_uri.startswith(SQLITE + "/"):
        return None
    folder = Path(client.tracking_uri.removeprefix(SQLITE)).parent
    if folder == Path.cwd():
        return None
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return (folder / "mlruns" / f"{safe}-{uuid.uuid4().hex[:8]}").as_uri()
