"""What MLflow's UI shows of a run beside its own: page of the experiment, data, versions, lines."""

from __future__ import annotations

import json

import pytest
from mlflow import MlflowClient

from tests.mlflow_runs import runs_of
from tvmopt.stages.result import StageResult
from tvmopt.tracking.store.command import command
from tvmopt.tracking.store.mlflow_store import experiment_id, open_on_runs, runs_page, ui_command
from tvmopt.tracking.store.runs import log_series

KIND = "mlflow.experimentKind"


@pytest.fixture
def client(store_uri, monkeypatch) -> MlflowClient:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store_uri)
    return MlflowClient(store_uri)


def _kind(client: MlflowClient, experiment: str) -> str | None:
    return client.get_experiment(experiment).tags.get(KIND)


def test_an_experiment_of_ours_opens_on_its_runs(client) -> None:
    assert _kind(client, experiment_id(client, "ours")) == "custom_model_development"


@pytest.mark.parametrize("how", ["MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"])
def test_an_experiment_that_somebody_else_made_does_so_too(client, monkeypatch, how) -> None:
    name = f"theirs {how}"
    experiment = client.create_experiment(name)
    values = {"MLFLOW_EXPERIMENT_ID": experiment, "MLFLOW_EXPERIMENT_NAME": name}
    if how == "MLFLOW_RUN_ID":  # as `mlflow run` does
        values[how] = client.create_run(experiment).info.run_id
    monkeypatch.setenv(how, values[how])
    assert _kind(client, experiment) is None
    with command("test", "net", {}) as session:
        assert session.experiment == experiment
        assert _kind(client, experiment) == "custom_model_development"


def test_the_page_that_somebody_chose_stays(client) -> None:
    experiment = client.create_experiment("chosen", tags={KIND: "genai_development"})
    open_on_runs(client, experiment)
    assert _kind(client, experiment) == "genai_development"


@pytest.mark.parametrize(
    ("uri", "command", "page"),
    [
        ("sqlite:////data/m.db", "mlflow ui --backend-store-uri sqlite:////data/m.db",
         "http://127.0.0.1:5000/#/experiments/7/runs?workflowType=machine_learning"),
        ("postgresql://u:secret@h/db", 'mlflow ui --backend-store-uri "$MLFLOW_TRACKING_URI"',
         "http://127.0.0.1:5000/#/experiments/7/runs?workflowType=machine_learning"),
        ("https://u:secret@host/mlflow/", "",
         "https://***:***@host/mlflow/#/experiments/7/runs?workflowType=machine_learning"),
    ],
)  # fmt: skip
def test_the_runs_are_a_command_and_a_page_away(uri, command, page) -> None:
    assert ui_command(uri) == command
    assert runs_page(uri, "7") == page


def test_a_logged_model_lists_its_version_once(example) -> None:
    client = example.client()
    version = client.get_model_version("digits-cnn", "1")
    model = client.get_logged_model(version.source.removeprefix("models:/"))
    listed = json.loads(model.tags["mlflow.modelVersions"])
    assert [(item["name"], str(item["version"])) for item in listed] == [("digits-cnn", "1")]


def test_the_main_run_names_its_data_and_its_version(example) -> None:
    client = example.client()
    run = runs_of(client, "tags.`tvmopt.entry_point` = 'main'")[-1]  # the oldest
    [used] = run.inputs.dataset_inputs
    assert used.dataset.name == "digits_eval.npz"
    version = client.get_model_version("digits-cnn", run.data.tags["tvmopt.registered_version"])
    assert [output.model_id for output in run.outputs.model_outputs] == [
        version.source.removeprefix("models:/")
    ]
    experiment = client.get_experiment(run.info.experiment_id)
    assert experiment.tags[KIND] == "custom_model_development"


def test_the_convergence_of_tuning_is_a_metric_with_steps(example) -> None:
    client = example.client()
    run = runs_of(client, "tags.`tvmopt.stage` = 'tune'")[-1]
    points = client.get_metric_history(run.info.run_id, "tune_best_latency_ms")
    points.sort(key=lambda m: m.step)
    assert len({m.step for m in points}) == len(points) > 1
    best = [m.value for m in points]
    assert best == sorted(best, reverse=True)
    assert run.data.metrics["tune_best_latency_ms"] == best[-1]
    seconds = {
        m.step: m.value for m in client.get_metric_history(run.info.run_id, "tune_elapsed_s")
    }
    first, last = points[0], points[-1]
    measured = (last.timestamp - first.timestamp) / 1e3
    assert measured == pytest.approx(seconds[last.step] - seconds[first.step], abs=0.01)


def test_a_series_of_any_length_is_logged(client) -> None:
    run_id = client.create_run(experiment_id(client, "series")).info.run_id
    points = [(n, float(n), 0.5 * n) for n in range(1, 1502)]
    log_series(client, run_id, {"long": points, "empty": []})
    found = client.get_metric_history(run_id, "long")
    assert sorted((m.step, m.value) for m in found) == [(n, value) for n, _, value in points]
    assert "empty" not in client.get_run(run_id).data.metrics


def test_a_stage_result_with_series_survives_its_file(tmp_path) -> None:
    result = StageResult({"a": 1.0}, {}, [], {"best": [(1, 0.1, 5.0), (2, 0.2, 4.0)]})
    result.write(tmp_path / "result.json")
    read = StageResult.read(tmp_path / "result.json")
    assert read.all_metrics == {"a": 1.0, "best": 4.0}
    assert json.loads(json.dumps(result.series)) == read.series
