"""A registered model whose files a test may change."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
import yaml
from mlflow import MlflowClient

from tests.mlflow_runs import client_of
from tvmopt.runtime.metadata import METADATA_FILE
from tvmopt.tracking.registry import versions as registry


@dataclasses.dataclass
class Registered:
    """A registered model, and the folder of its artifacts, which a test may change."""

    client: MlflowClient
    name: str
    saved: Path

    @property
    def uri(self) -> str:
        return f"models:/{self.name}/1"

    def edit_mlmodel(self, **changes: object) -> None:
        """Change the flavor section of MLmodel."""
        path = self.saved / "MLmodel"
        data = yaml.safe_load(path.read_text())
        data["flavors"]["tvmopt"].update(changes)
        path.write_text(yaml.safe_dump(data))

    def edit_metadata(self, **changes: object) -> str:
        """Change model.json; return its new hash."""
        path = self.saved / "compiled" / METADATA_FILE
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        return hashlib.sha256(path.read_bytes()).hexdigest()


@contextlib.contextmanager
def in_store(uri: str, folder: Path) -> Iterator[MlflowClient]:
    """Work in ``folder`` with the store at ``uri``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        patch.chdir(folder)
        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)  # other tests of this process may have set a URI
        try:
            yield client_of(uri)
        finally:
            # None, not the value before: a URI that is set takes precedence over the environment.
            mlflow.set_tracking_uri(None)
            mlflow.set_registry_uri(None)


def register_bundle(client: MlflowClient, folder: Path, bundle: Path) -> Registered:
    """Register a bundle under the name of ``folder``, with its artifacts in there."""
    experiment = client.create_experiment(folder.name, (folder / "artifacts").as_uri())
    run = client.create_run(experiment)
    made = registry.register(client, folder.name, bundle, run.info.run_id, {})
    assert made.version == "1"
    [saved] = [p.parent for p in (folder / "artifacts").rglob("MLmodel")]
    return Registered(client, folder.name, saved)
