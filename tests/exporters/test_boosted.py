"""XGBoost and LightGBM models: boosters and estimators, classifiers and regressors."""

from __future__ import annotations

import mlflow
import numpy as np
import pytest

from tests.exporters.saved import exported, labels, table

pytest.importorskip("onnxmltools", reason="the extra sklearn is not installed")


@pytest.mark.parametrize("classes", [2, 3])
def test_xgboost_classifier(tmp_path, classes):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    rows = table(missing=True)
    model = xgboost.XGBClassifier(n_estimators=8).fit(rows, labels(rows, classes))
    found = exported(tmp_path, mlflow.xgboost, model, rows, trust=False)
    assert "" in {entry.domain for entry in found.model.opset_import}
    fresh = table(missing=True, seed=1)
    got, want = found.run(fresh), model.predict(fresh)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == want.dtype


def test_xgboost_stops_where_the_source_stopped(tmp_path):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    rows, noise = table(), np.random.default_rng(0).integers(0, 2, 400)
    model = xgboost.XGBClassifier(n_estimators=30, early_stopping_rounds=2, learning_rate=1.0)
    model.fit(rows[:200], noise[:200], eval_set=[(rows[200:], noise[200:])], verbose=False)
    assert model.best_iteration < 29
    found = exported(tmp_path, mlflow.xgboost, model, rows, trust=False)
    fresh = table(seed=1)
    np.testing.assert_array_equal(found.run(fresh), model.predict(fresh))


class _BoosterOfTables:
    """A booster as MLflow's generic flavor calls it."""

    def __init__(self, booster):
        self.booster = booster

    def predict(self, rows):
        import xgboost

        return self.booster.predict(xgboost.DMatrix(rows))


@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softprob", "reg:squarederror"])
def test_xgboost_booster(tmp_path, objective):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    from tests.exporters.saved import export_files, save
    from tvmopt.exporters.source import describe

    rows = table()
    known = labels(rows, 3 if objective.startswith("multi") else 2)
    options = {"objective": objective}
    if objective.startswith("multi"):
        options["num_class"] = 3
    booster = xgboost.train(options, xgboost.DMatrix(rows, known), 5)
    wanted = _BoosterOfTables(booster)
    saved, said = save(tmp_path, mlflow.xgboost, booster, rows[:20], wanted.predict(rows[:20]))
    source = describe("models:/b/1", said["flavors"], said["signature"], trust=False)
    found = export_files(tmp_path, saved, source, rows)
    fresh = table(seed=1)
    got, want = found.run(fresh), wanted.predict(fresh)
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)


@pytest.mark.parametrize("classes", [2, 3])
def test_lightgbm_classifier_with_texts_as_classes(tmp_path, classes):
    lightgbm = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    rows = table(missing=True)
    words = np.array(["low", "high", "middle"])[labels(rows, classes)]
    model = lightgbm.LGBMClassifier(n_estimators=8, verbose=-1).fit(rows, words)
    found = exported(tmp_path, mlflow.lightgbm, model, rows, trust=False)
    fresh = table(missing=True, seed=1)
    np.testing.assert_array_equal(found.run(fresh), model.predict(fresh))


def test_lightgbm_compares_float64(tmp_path):
    lightgbm = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    rows = table()
    model = lightgbm.LGBMRegressor(n_estimators=8, verbose=-1)
    model.fit(rows, rows.sum(axis=1))
    found = exported(tmp_path, mlflow.lightgbm, model, rows, trust=False)
    tree = model.booster_.dump_model()["tree_info"][0]["tree_structure"]
    near = rows.copy()
    near.iloc[:, tree["split_feature"]] = np.nextafter(tree["threshold"], np.inf)
    missing = table(missing=True, seed=1)  # LightGBM takes them for 0: it has seen none
    for case in (table(seed=1), near, missing):
        got, want = found.run(case), model.predict(case)
        np.testing.assert_allclose(got, want, atol=1e-5)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)


def test_lightgbm_booster(tmp_path):
    lightgbm = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    rows = table()
    data = lightgbm.Dataset(rows, labels(rows, 2))
    booster = lightgbm.train({"objective": "binary", "verbose": -1}, data, 5)
    found = exported(tmp_path, mlflow.lightgbm, booster, rows, trust=False)
    fresh = table(seed=1)
    got, want = found.run(fresh), booster.predict(fresh)
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
