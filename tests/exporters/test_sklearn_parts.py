"""Models of several parts: pipelines, votes, imputers, boosters and support vector machines."""

from __future__ import annotations

import dataclasses
import re

import mlflow
import numpy as np
import pandas
import pytest
from sklearn.linear_model import LogisticRegression

from tests.exporters.saved import exported, labels, table
from tvmopt.errors import AccuracyError, ConfigError, ModelError

pytest.importorskip("skl2onnx", reason="the extra sklearn is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")
CLOUDPICKLE = {"serialization_format": "cloudpickle"}
SHARES = {**CLOUDPICKLE, "pyfunc_predict_fn": "predict_proba"}
_DOUBLE = 11


def _answers_are_equal(found, model, rows, method="predict"):
    got, want = found.run(rows), np.asarray(getattr(model, method)(rows))
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, want)


def _skewed(seed=0):
    """Return rows whose scaled values float32 rounds to other sides of a threshold."""
    return np.exp(table(seed=seed) * 3) + 1e4


def test_trees_behind_a_scaler_get_float64(tmp_path):
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = _skewed()
    model = make_pipeline(StandardScaler(), RandomForestClassifier(20, random_state=0))
    model.fit(rows, labels(table()))
    found = exported(tmp_path, mlflow.sklearn, model, rows, **SHARES)
    assert found.model.graph.input[0].type.tensor_type.elem_type == _DOUBLE
    fresh = pandas.concat([_skewed(seed) for seed in range(1, 8)])
    _answers_are_equal(found, model, fresh, "predict_proba")


@pytest.mark.sample(2)
@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
@pytest.mark.parametrize("classes", [2, 3])
def test_boosters_in_pipelines(tmp_path, library, classes):
    package = pytest.importorskip(library, reason=f"{library} is not installed")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    name, quiet = ("LGBMClassifier", {"verbose": -1}) if library == "lightgbm" else (
        "XGBClassifier", {},
    )  # fmt: skip
    rows, known = table(missing=True), labels(table(missing=True), classes)
    known = np.array(["b", "a", "c"])[known] if library == "lightgbm" else known
    model = make_pipeline(StandardScaler(), getattr(package, name)(n_estimators=5, **quiet))
    model.fit(rows, known)
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    _answers_are_equal(found, model, table(missing=True, seed=1))


@pytest.mark.parametrize("voting", ["hard", "soft"])
def test_votes(tmp_path, voting):
    from sklearn.ensemble import VotingClassifier
    from sklearn.naive_bayes import GaussianNB
    from sklearn.tree import DecisionTreeClassifier

    parts = [("a", LogisticRegression()), ("b", GaussianNB()),
             ("c", DecisionTreeClassifier(max_depth=3, random_state=0))]  # fmt: skip
    rows = table()
    model = VotingClassifier(parts, voting=voting).fit(rows, labels(rows))
    assert model.flatten_transform  # which skl2onnx refuses; it changes no prediction
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    _answers_are_equal(found, model, table(seed=1))


def test_a_classifier_without_probabilities(tmp_path):
    from sklearn.svm import LinearSVC

    rows = table()
    model = LinearSVC().fit(rows, labels(rows))
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    _answers_are_equal(found, model, table(seed=1))


@pytest.mark.sample(2)
@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly", "sigmoid"])
def test_support_vector_machines_compute_float64(tmp_path, kernel):
    from sklearn.svm import SVC, SVR

    # Far from 0, libsvm does not come to an end with the kernels of dot products.
    size, shift = (1e3, 1e6) if kernel == "rbf" else (1, 0)
    rows = table() * size + shift
    for number, classes in enumerate((2, 4)):
        model = SVC(kernel=kernel, C=10).fit(rows, labels(table(), classes))
        folder = tmp_path / str(number)
        folder.mkdir()
        found = exported(folder, mlflow.sklearn, model, rows, **CLOUDPICKLE)
        assert not any(node.op_type.startswith("SVM") for node in found.model.graph.node)
        _answers_are_equal(found, model, table(seed=1) * size + shift)
    folder = tmp_path / "values"
    folder.mkdir()
    model = SVR(kernel=kernel, C=10).fit(table(), table().sum(axis=1))
    found = exported(folder, mlflow.sklearn, model, table(), **CLOUDPICKLE)
    _answers_are_equal(found, model, table(seed=1))


def test_outliers_of_a_support_vector_machine(tmp_path):
    from sklearn.svm import OneClassSVM

    model = OneClassSVM(nu=0.2).fit(table())
    found = exported(tmp_path, mlflow.sklearn, model, table(), **CLOUDPICKLE)
    _answers_are_equal(found, model, table(seed=1))
    assert set(found.run(table(seed=1))) == {-1, 1}


@pytest.mark.parametrize("kind", ["RandomForestRegressor", "ExtraTreesRegressor"])
def test_a_forest_of_several_values(tmp_path, kind):
    from sklearn import ensemble

    rows = table()
    wanted = np.stack([rows.sum(axis=1), rows["column 0"] ** 2, rows["column 1"]], axis=1)
    model = getattr(ensemble, kind)(10, random_state=0).fit(rows, wanted)
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    _answers_are_equal(found, model, table(seed=1))


def test_an_imputer_with_indicators_before_trees(tmp_path):
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline

    rows = table(missing=True)
    model = make_pipeline(
        SimpleImputer(strategy="median", add_indicator=True),
        RandomForestClassifier(10, random_state=0),
    ).fit(rows, labels(rows))
    found = exported(tmp_path, mlflow.sklearn, model, rows, **SHARES)
    assert found.model.graph.input[0].type.tensor_type.elem_type == _DOUBLE
    _answers_are_equal(found, model, table(missing=True, seed=1), "predict_proba")


def test_missing_texts_are_imputed(tmp_path):
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    random = np.random.default_rng(0)
    cities = np.array(["Bern", "Graz", "Graz", np.nan], object)
    rows = pandas.DataFrame({"city": random.choice(cities, 300), "age": random.normal(40, 9, 300)})
    rows["city"] = rows["city"].astype(object)
    encode = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
    )
    model = make_pipeline(
        ColumnTransformer([("city", encode, ["city"])], remainder="passthrough"),
        LogisticRegression(),
    ).fit(rows, (rows.age > 40) ^ (rows.city == "Bern"))
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    _answers_are_equal(found, model, rows)
    strange = rows.assign(city="Oslo")
    np.testing.assert_array_equal(found.run(strange), model.predict(strange))
    # The imputer fills NaN alone: None is an unknown category to it, or refused.
    with pytest.raises(ConfigError, match=r"'city' must hold NaN for a missing text.*1 of 300"):
        found.run(rows.assign(city=pandas.Series([None, *rows.city[1:]], dtype=object)))


@pytest.mark.parametrize("function", [np.log1p, np.square, None])
def test_functions_of_numpy(tmp_path, function):
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    rows = table().abs()
    model = make_pipeline(FunctionTransformer(function), LogisticRegression())
    model.fit(rows, labels(table()))
    found = exported(tmp_path, mlflow.sklearn, model, rows, **SHARES)
    _answers_are_equal(found, model, table(seed=1).abs(), "predict_proba")


def test_intervals_as_one_hot(tmp_path):
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer

    rows = table()
    model = make_pipeline(KBinsDiscretizer(4), LogisticRegression()).fit(rows, labels(rows))
    found = exported(tmp_path, mlflow.sklearn, model, rows, **SHARES)
    _answers_are_equal(found, model, table(seed=1), "predict_proba")


def test_values_of_a_least_squares_projection(tmp_path):
    from sklearn.cross_decomposition import PLSRegression  # skl2onnx declares a wrong width

    rows = table()
    model = PLSRegression(2).fit(rows, rows.sum(axis=1))
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    _answers_are_equal(found, model, table(seed=1))


def _refused():
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, SplineTransformer

    rows = table()
    several = np.stack([labels(rows), labels(rows, 2)], axis=1)
    lines = make_pipeline(SplineTransformer(), LogisticRegression()).fit(rows, labels(rows))
    own = make_pipeline(FunctionTransformer(np.cbrt), LogisticRegression()).fit(rows, labels(rows))
    return [
        (lines, "none for SplineTransformer; use another class in its place"),
        (own, "function of FunctionTransformer must be one of np.abs.*but is cbrt"),
        (RandomForestClassifier(3).fit(rows, several), "must give one label a row.*gives 2"),
    ]


@pytest.mark.parametrize("number", range(3))
def test_what_cannot_be_exported_is_named(tmp_path, number):
    model, message = _refused()[number]
    with pytest.raises(ModelError, match=message) as raised:
        exported(tmp_path, mlflow.sklearn, model, table(), **CLOUDPICKLE)
    assert "\n" not in str(raised.value)


@pytest.fixture
def asked_of(monkeypatch):
    """Let a function of the rows predict in place of the source."""
    from tvmopt.exporters import sklearn as exporter

    original = exporter.export_estimator

    def replace(predict):
        def export_estimator(source, loaded, dtype):
            found = original(source, loaded, dtype)
            return dataclasses.replace(found, predict=predict, references={})

        monkeypatch.setattr(exporter, "export_estimator", export_estimator)

    return replace


def _known(given):
    """Return a function that tells which rows are among the given ones."""
    rows = {tuple(row) for row in given.to_numpy().tolist()}
    return lambda asked: np.array([tuple(row) in rows for row in asked.to_numpy().tolist()])


def test_an_export_that_differs_between_the_given_rows_is_refused(tmp_path, asked_of):
    rows = table()
    model = LogisticRegression().fit(rows, labels(rows))
    known = _known(rows[:3])
    asked_of(lambda asked: np.abs(model.predict(asked) - ~known(asked)))
    with pytest.raises(AccuracyError, match=r"must equal the source.*on rows made of those of dat"):
        exported(tmp_path, mlflow.sklearn, model, rows[:3], **CLOUDPICKLE)


def test_it_is_said_that_the_source_refuses_made_up_rows(tmp_path, asked_of):
    rows = table()
    model = LogisticRegression().fit(rows, labels(rows))
    known = _known(rows)

    def predict(asked):
        if not known(asked).all():
            raise ValueError("rows must be those of the customer")
        return model.predict(asked)

    asked_of(predict)
    found = exported(tmp_path, mlflow.sklearn, model, rows[:3], **CLOUDPICKLE)
    assert (
        "rows made of those of data: 0 compared; the source refuses others: rows must be those of "
        "the customer"
    ) in found.lines


def test_the_number_of_made_up_rows_is_said(tmp_path):
    rows = table()
    model = LogisticRegression().fit(rows, labels(rows))
    found = exported(tmp_path, mlflow.sklearn, model, rows[:3], **CLOUDPICKLE)
    [line] = [line for line in found.lines if line.startswith("rows made of those of data")]
    assert re.fullmatch(r"rows made of those of data: \d+ compared, all equal", line)
    assert 500 <= int(line.split()[6]) <= 4000
