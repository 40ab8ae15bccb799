"""A pipeline of scikit-learn from the registry to a champion that is called as its source is."""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import numpy as np
import pandas
import pytest
from mlflow.models import infer_signature

from tests.mlflow_runs import client_of, runs_of
from tvmopt.errors import ConfigError
from tvmopt.tracking.store.mlflow_store import experiment_id

pytest.importorskip("skl2onnx", reason="the extra sklearn is not installed")
_NAME = "risk"


def _rows(count: int, seed: int) -> pandas.DataFrame:
    random = np.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "age": np.where(random.random(count) < 0.1, np.nan, random.normal(40, 10, count)),
            "rooms": random.integers(1, 5, count),
            "city": random.choice(np.array(["Bern", "Graz", "Lyon"]), count),
        }
    )


def _fitted(rows: pandas.DataFrame, wanted: np.ndarray):
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = Pipeline([("fill", SimpleImputer()), ("scale", StandardScaler())])
    encode = ColumnTransformer(
        [("numbers", numbers, ["age"]), ("words", OneHotEncoder(), ["rooms", "city"])]
    )
    return Pipeline([("encode", encode), ("classify", LogisticRegression())]).fit(rows, wanted)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory, run_flow):
    """Register a pipeline, run ``main`` on it, and give the source and the store's client."""
    folder = tmp_path_factory.mktemp("source")
    client = client_of(folder)
    rows = _rows(300, 0)
    wanted = np.where((rows.city == "Bern") ^ (rows.rooms > 2), "yes", "no")
    model = _fitted(rows, wanted)
    mlflow.set_tracking_uri(client.tracking_uri)
    with mlflow.start_run(experiment_id=experiment_id(client, "sources")):
        mlflow.sklearn.log_model(
            model, name="model", signature=infer_signature(rows, wanted), input_example=rows[:5],
            registered_model_name=_NAME, serialization_format="cloudpickle",
        )  # fmt: skip
    rows.assign(approved=wanted).to_csv(folder / "rows.csv", index=False)
    asked = {"model": f"models:/{_NAME}/1", "data": folder / "rows.csv", "label": "approved",
             "input_shapes": "rows=1,50", "strategy": "default", "repeats": 10}  # fmt: skip
    refused = run_flow(folder, "main", **asked)
    done = run_flow(folder, "main", trust="true", **asked)
    assert done.returncode == 0, done.stderr
    yield client, model, refused, done
    mlflow.set_tracking_uri(None)


def test_a_pickle_is_not_read_without_trust(compiled):
    _, _, refused, _ = compiled
    assert refused.returncode == 2
    assert "must be trusted to be read" in refused.stderr
    assert "add trust=true" in refused.stderr


def test_the_champion_is_called_as_its_source(compiled):
    _, _, _, done = compiled
    assert "300 rows, 0 labels differ" in done.stdout
    champion = mlflow.pyfunc.load_model(f"models:/{_NAME}-compiled@champion")
    source = mlflow.pyfunc.load_model(f"models:/{_NAME}/1")
    rows = _rows(1237, 1)
    got, want = champion.predict(rows), source.predict(rows)
    np.testing.assert_array_equal(got, want)
    assert (type(got), got.dtype, got.shape) == (type(want), want.dtype, want.shape)
    np.testing.assert_array_equal(champion.predict(rows[["city", "rooms", "age"]]), want)
    assert champion.metadata.signature == source.metadata.signature


def test_values_that_the_source_refuses(compiled):
    champion = mlflow.pyfunc.load_model(f"models:/{_NAME}-compiled@champion")
    rows = _rows(3, 2)
    with pytest.raises(mlflow.MlflowException, match=r"'city' must hold categories.*'Oslo'"):
        champion.predict(rows.assign(city="Oslo"))
    with pytest.raises(mlflow.MlflowException, match=r"missing inputs.*city"):
        champion.predict(rows.drop(columns="city"))


def test_the_version_and_the_run_name_the_source(compiled):
    client, _, _, _ = compiled
    version = client.get_model_version_by_alias(f"{_NAME}-compiled", "champion")
    assert version.tags["source"] == f"models:/{_NAME}/1"
    source = client.get_model_version(_NAME, "1")
    runs = runs_of(client, "tags.`tvmopt.entry_point` = 'main'")
    found = [client.get_run(run.info.run_id) for run in runs]  # a search leaves models out
    inputs = [one.model_id for run in found for one in run.inputs.model_inputs]
    assert inputs == [source.source.removeprefix("models:/")]


def test_the_input_example_is_a_table(compiled):
    local = mlflow.artifacts.download_artifacts(f"models:/{_NAME}-compiled@champion")
    found = json.loads((Path(local) / "input_example.json").read_text())
    assert found["columns"] == ["age", "rooms", "city"]
    assert found["data"][0][2] in ("Bern", "Graz", "Lyon")


def test_the_server_answers_as_the_server_of_the_source(compiled):
    from mlflow.pyfunc.scoring_server import invocations

    from tvmopt.parameters.groups import ServerParameters
    from tvmopt.tracking import flavor
    from tvmopt.tracking.serving.refusal import RefusedRequestError
    from tvmopt.tracking.serving.serve import scoring_app

    model = flavor.load_model(f"models:/{_NAME}-compiled@champion")
    app = scoring_app(model, ServerParameters())
    source = mlflow.pyfunc.load_model(f"models:/{_NAME}/1")
    schema = source.metadata.get_input_schema()
    rows = _rows(7, 4)
    bodies = [{"dataframe_split": json.loads(rows.to_json(orient="split", index=False))},
              {"dataframe_records": json.loads(rows.to_json(orient="records"))}]  # fmt: skip
    for body in map(json.dumps, bodies):
        want = invocations(body, "application/json", source, schema).response
        assert json.loads(app._answered(body.encode())) == json.loads(want)
    with pytest.raises(RefusedRequestError, match=r"must hold what the source takes.*city"):
        app._answered(b'{"dataframe_split": {"columns": ["age", "rooms"], "data": [[1.5, 2]]}}')


def test_labels_that_are_no_classes_are_refused(compiled, tmp_path):
    from tvmopt.exporters.source import describe
    from tvmopt.stages.export import export

    local = mlflow.artifacts.download_artifacts(f"models:/{_NAME}/1")
    said = mlflow.models.Model.load(local)
    source = describe("models:/risk/1", said.flavors, said.signature.to_dict(), trust=True)
    _rows(30, 3).assign(label="maybe").to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(ConfigError, match=r"must be classes of the source \(no, yes\).*'maybe'"):
        export(
            source.to_dict(), "", Path(local), tmp_path / "rows.csv", tmp_path,
            lambda *told: None,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "is_table", "size", "wanted"),
    [
        ({}, True, 5_000_000, (4, 10.0)),
        ({"topk": 7, "time_budget": 60.0}, True, 5_000_000, (7, 60.0)),
        ({}, False, 5_000, (20, 10.0)),
        ({}, False, 5_000_000, (20, 0.0)),
    ],
)
def test_small_models_are_tuned_briefly_unless_the_user_says_how(given, is_table, size, wanted):
    from tvmopt.parameters.groups import TuningParameters
    from tvmopt.tracking.pipeline.source import _tuning

    found = _tuning(TuningParameters(**given), is_table, size)
    assert (found.topk, found.time_budget) == wanted
    assert found.strategy == TuningParameters.strategy
