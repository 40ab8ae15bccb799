"""Open and close MLflow runs with a truthful status."""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    LoggedModelInput,
    LoggedModelOutput,
    Metric,
    Param,
    RunTag,
)
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

from tvmopt.errors import TvmoptError
from tvmopt.process import Process
from tvmopt.search.urls import without_known_secrets
from tvmopt.versions import VERSION

_PARAM_LIMIT = 6000
_TAG_LIMIT = 5000
_MOST_METRICS = 1000  # in one request


@contextmanager
def open_run(
    client: MlflowClient,
    experiment: str,
    name: str,
    params: Mapping[str, object],
    tags: Mapping[str, str],
    *,
    parent: str | None = None,
    run_id: str | None = None,
) -> Iterator[str]:
    """Open a run, or take over the one of ``mlflow run``, and close it with its true status.

    FINISHED when the body ends, FAILED with the failure class as a tag when it raises, KILLED when
    it is interrupted, by a user or by the end of a search's time.

    Yields:
        The run id.
    """
    all_tags = {**tags, **_process_tags()}
    if parent:
        all_tags[MLFLOW_PARENT_RUN_ID] = parent
    if run_id is None:
        all_tags["mlflow.user"] = user()
        run = client.create_run(experiment, tags=all_tags, run_name=name)
        run_id = run.info.run_id
    else:
        # RUNNING again, should another process have taken it for abandoned.
        client.update_run(run_id, status="RUNNING", name=name)
        log_tags(client, run_id, {**all_tags, MLFLOW_RUN_NAME: name})
    log_params(client, run_id, params)
    try:
        yield run_id
    except (KeyboardInterrupt, SystemExit):
        client.set_terminated(run_id, "KILLED")
        raise
    except BaseException as error:  # raised again: the run must not stay RUNNING
        kind = error.failure_class if isinstance(error, TvmoptError) else "crash"
        message = without_known_secrets(" ".join(str(error).split())) or type(error).__name__
        log_tags(client, run_id, {"tvmopt.failure_class": kind, "tvmopt.error": message})
        client.set_terminated(run_id, "KILLED" if kind == "time_budget" else "FAILED")
        raise
    client.set_terminated(run_id, "FINISHED")


def log_params(client: MlflowClient, run_id: str, params: Mapping[str, object]) -> None:
    """Log parameters; those that ``mlflow run`` has logged already stay as they are."""
    known = client.get_run(run_id).data.params
    new = [Param(k, str(v)[:_PARAM_LIMIT]) for k, v in params.items() if k not in known]
    client.log_batch(run_id, params=new)


def log_metrics(client: MlflowClient, run_id: str, metrics: Mapping[str, float]) -> None:
    """Log metrics; all must be finite."""
    now = int(time.time() * 1000)
    client.log_batch(run_id, [Metric(k, float(v), now, 0) for k, v in metrics.items()])


def log_series(
    client: MlflowClient, run_id: str, series: Mapping[str, Sequence[tuple[int, float, float]]]
) -> None:
    """Log metrics with steps, which the UI draws as lines over steps or over time.

    Args:
        client: Client of the store.
        run_id: The run.
        series: Of each metric its points: step, seconds on any clock, and value. The last point of
            all is taken for measured now.
    """
    now = time.time()
    last = max((seconds for points in series.values() for _, seconds, _ in points), default=0.0)
    found = [
        Metric(key, float(value), int(1000 * (now - last + seconds)), step)
        for key, points in series.items()
        for step, seconds, value in points
    ]
    for start in range(0, len(found), _MOST_METRICS):
        client.log_batch(run_id, found[start : start + _MOST_METRICS])


def log_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags, cut to the length that every store takes."""
    client.log_batch(run_id, tags=[RunTag(k, str(v)[:_TAG_LIMIT]) for k, v in tags.items()])


def log_dataset(client: MlflowClient, run_id: str, path: Path, digest: str, use: str) -> None:
    """Log the data of a run for the Datasets column; ``digest`` is its sha256."""
    source = json.dumps({"uri": path.resolve().as_uri()})
    dataset = Dataset(path.name, digest[:36], "local", source)
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", use)])])


def link_model(client: MlflowClient, run_id: str, model_id: str) -> None:
    """Link a logged model to a run, once; the UI shows its registered versions with the run."""
    outputs = client.get_run(run_id).outputs
    known = {output.model_id for output in outputs.model_outputs} if outputs else set()
    if model_id not in known:
        client.log_outputs(run_id, [LoggedModelOutput(model_id, 0)])


def link_source(client: MlflowClient, run_id: str, model_id: str) -> None:
    """Log the model that a run compiles as its input; the UI shows where a version comes from."""
    client.log_inputs(run_id, models=[LoggedModelInput(model_id)])


def _process_tags() -> dict[str, str]:
    own = Process.own()
    return {
        "tvmopt.version": VERSION,
        "tvmopt.host": own.host,
        "tvmopt.boot": own.boot,
        "tvmopt.pid": str(own.pid),
        "tvmopt.pid_start": own.start,
        "tvmopt.pid_namespace": own.namespace,
    }


def user() -> str:
    """Return the user's name, or its number where there is none, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
