"""Model registry: one version per compiled model, and its aliases."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models.model import ModelInfo
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS

from tvmopt.choices import CANDIDATE, CHAMPION
from tvmopt.errors import ConfigError
from tvmopt.runtime import ModelMetadata
from tvmopt.search.urls import masked_url
from tvmopt.tracking import flavor
from tvmopt.tracking.flavor.verify import FLAVOR_NAME, REGISTERED
from tvmopt.tracking.store.missing import is_missing

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,199}")


@dataclasses.dataclass(frozen=True)
class Registered:
    """A version of a registered model.

    Attributes:
        name: Registered model.
        version: The version.
        existed: Whether it existed before.
        model_id: The logged model that it is a version of.
    """

    name: str
    version: str
    existed: bool
    model_id: str


def check_name(name: str) -> str:
    """Return ``name`` if it may be a registered model's, else raise :class:`ConfigError`."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "name must start with a letter or digit and hold only letters, digits, spaces and "
            f"._- (at most 200), but got {name!r}"
        )
    return name


def register(
    client: MlflowClient,
    name: str,
    bundle: Path,
    run_id: str,
    tags: Mapping[str, str],
) -> Registered:
    """Make a compiled model a version of ``name``, once: the same digest gives the same version.

    The new version gets the alias ``candidate``.
    """
    model = ModelMetadata.read(bundle)
    tags = {
        "target": model.device,
        "threads": str(model.threads),
        "tvm": model.tvm_version,
        "digest": model.digest,
        **({"fallback": f"onnxruntime: {model.segments} segment(s)"} if model.segments else {}),
        **tags,
    }
    same = [v for v in versions(client, name) if v.tags.get("digest") == model.digest]
    there = next((v for v in same if _is_there(v)), None)
    if there is not None:
        number, model_id = str(there.version), logged_model_id(there)
        for key, value in tags.items():
            if key not in REGISTERED:  # the hashes of the registered files stay
                client.set_model_version_tag(name, number, key, value)
    else:
        # MLflow files a logged model under the process's experiment, not under that of its run.
        mlflow.set_experiment(experiment_id=client.get_run(run_id).info.experiment_id)
        logged = flavor.log_model(bundle, name="model", run_id=run_id, tags=dict(tags))
        saved = logged.flavors[FLAVOR_NAME]
        tags |= {tag: saved[key] for tag, key in REGISTERED.items()}
        number, model_id = _new_version(client, name, logged, run_id, tags), logged.model_id
    _list_version(client, model_id, name, number)
    client.set_registered_model_alias(name, CANDIDATE, number)
    return Registered(name, number, there is not None, model_id)


def logged_model_id(version: ModelVersion) -> str:
    """Return the id of the logged model that a version was made of."""
    return str(version.source).removeprefix("models:/")  # a search leaves version.model_id empty


def _new_version(
    client: MlflowClient, name: str, logged: ModelInfo, run_id: str, tags: Mapping[str, str]
) -> str:
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
            raise
    made = client.create_model_version(
        name, logged.model_uri, run_id=run_id, model_id=logged.model_id, tags=dict(tags)
    )
    return str(made.version)


def _list_version(client: MlflowClient, model_id: str, name: str, version: str) -> None:
    """List a version on its logged model; the UI links runs to registered models by that list.

    MLflow's server does so; a client that writes to the database itself has to.
    """
    listed = json.loads(client.get_logged_model(model_id).tags.get(MLFLOW_MODEL_VERSIONS, "[]"))
    if not any((item["name"], str(item["version"])) == (name, version) for item in listed):
        listed.append({"name": name, "version": version})
        client.set_logged_model_tags(model_id, {MLFLOW_MODEL_VERSIONS: json.dumps(listed)})


def versions(client: MlflowClient, name: str) -> list[ModelVersion]:
    """All versions of a registered model, newest first; empty when there is no such model."""
    quoted = name.replace("'", "\\'")
    found = client.search_model_versions(f"name='{quoted}'")
    return sorted(found, key=lambda v: int(v.version), reverse=True)


def find_version(client: MlflowClient, name: str, which: str) -> ModelVersion:
    """Version by number or alias.

    Raises:
        ConfigError: When there is no such model, version or alias; says what there is.
    """
    try:
        if which.isdigit():
            return client.get_model_version(name, which)
        return client.get_model_version_by_alias(name, which)
    except MlflowException as error:
        known = versions(client, name)
        if not known:
            models = ", ".join(m.name for m in client.search_registered_models()) or "none"
            raise ConfigError(
                f"name must be a registered model ({models}), but got {name!r}; the store is "
                f"{masked_url(client.tracking_uri)}, MLFLOW_TRACKING_URI names another one"
            ) from error
        aliases = sorted(client.get_registered_model(name).aliases)
        numbers = ", ".join(str(v.version) for v in known)
        raise ConfigError(
            f"version must be a version ({numbers}) or an alias ({', '.join(aliases) or 'none'}) "
            f"of {name!r}, but got {which!r}"
        ) from error


def champion_alias(target: str) -> str:
    """Alias of the champion for one target: ``champion-<target>``."""
    return f"{CHAMPION}-{re.sub(r'[^A-Za-z0-9_-]', '-', target)}"


def _is_there(version: ModelVersion) -> bool:
    """Return whether a version has its files; somebody may have deleted them.

    Raises:
        MlflowException, OSError: When the store does not answer. The files may be there then.
    """
    from mlflow.artifacts import list_artifacts

    try:
        return any(
            item.path.endswith("MLmodel")
            for item in list_artifacts(f"models:/{version.name}/{version.version}")
        )
    except MlflowException as error:
        if not is_missing(error):
            raise
        return False
