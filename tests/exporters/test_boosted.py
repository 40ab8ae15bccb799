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


_REGRESSIONS = {
    "dart": {"booster": "dart", "rate_drop": 0.5},
    "base score": {"base_score": 3.5},
    "poisson": {"objective": "count:poisson"},
    "logistic": {"objective": "reg:logistic"},
    "quantiles": {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.9]},
}


@pytest.mark.parametrize("name", list(_REGRESSIONS))
def test_xgboost_regressors(tmp_path, name):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    rows = table(missing=True)
    wanted = labels(rows, 2 if name == "logistic" else 4)
    model = xgboost.XGBRegressor(n_estimators=6, **_REGRESSIONS[name]).fit(rows, wanted)
    found = exported(tmp_path, mlflow.xgboost, model, rows, trust=False)
    _numbers_are_equal(found, model, table(missing=True, seed=1))


def _numbers_are_equal(found, model, rows):
    got, want = found.run(rows), np.asarray(model.predict(rows))
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"booster": "dart", "rate_drop": 0.5}, {"objective": "binary:hinge"},
     {"objective": "binary:logitraw"}],
)  # fmt: skip
def test_xgboost_classifiers_of_other_objectives(tmp_path, options):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    rows = table(missing=True)
    model = xgboost.XGBClassifier(n_estimators=6, **options).fit(rows, labels(rows, 2))
    found = exported(tmp_path, mlflow.xgboost, model, rows, trust=False)
    fresh = table(missing=True, seed=1)
    np.testing.assert_array_equal(found.run(fresh), model.predict(fresh))


def test_xgboost_forest_of_several_classes(tmp_path):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    rows = table()
    model = xgboost.XGBRFClassifier(n_estimators=6).fit(rows, labels(rows, 3))
    found = exported(tmp_path, mlflow.xgboost, model, rows, trust=False)
    fresh = table(seed=1)
    np.testing.assert_array_equal(found.run(fresh), model.predict(fresh))


def test_xgboost_of_several_values(tmp_path):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    rows = table()
    wanted = np.stack([rows.sum(axis=1), rows["column 0"]], axis=1)
    model = xgboost.XGBRegressor(n_estimators=6).fit(rows, wanted)
    found = exported(tmp_path, mlflow.xgboost, model, rows, trust=False)
    _numbers_are_equal(found, model, table(seed=1))


def test_rankers(tmp_path):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    lightgbm = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    rows = table()
    known = labels(rows, 3)
    models = {
        mlflow.xgboost: xgboost.XGBRanker(n_estimators=6).fit(
            rows, known, qid=np.arange(len(rows)) // 10
        ),
        mlflow.lightgbm: lightgbm.LGBMRanker(n_estimators=6, verbose=-1).fit(
            rows, known, group=[10] * (len(rows) // 10)
        ),
    }
    for number, (flavor, model) in enumerate(models.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        pickled = flavor is mlflow.lightgbm
        options = {"serialization_format": "cloudpickle"} if pickled else {}
        found = exported(folder, flavor, model, rows, **options)
        _numbers_are_equal(found, model, table(seed=1))


def test_an_xgboost_booster_takes_the_trees_behind_its_best(tmp_path):
    # An estimator stops at the best iteration; Booster.predict, which MLflow calls, does not.
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    from tests.exporters.saved import export_files, save
    from tvmopt.exporters.source import describe

    rows, noise = table(), np.random.default_rng(0).integers(0, 2, 400)
    data = xgboost.DMatrix(rows[:200], noise[:200])
    seen = [(xgboost.DMatrix(rows[200:], noise[200:]), "seen")]
    options = {"objective": "binary:logistic", "learning_rate": 1.0}
    booster = xgboost.train(
        options, data, 30, evals=seen, early_stopping_rounds=4, verbose_eval=False
    )
    assert booster.best_iteration + 1 < booster.num_boosted_rounds()
    wanted = _BoosterOfTables(booster)
    saved, said = save(tmp_path, mlflow.xgboost, booster, rows[:20], wanted.predict(rows[:20]))
    source = describe("models:/b/1", said["flavors"], said["signature"], trust=False)
    _numbers_are_equal(export_files(tmp_path, saved, source, rows), wanted, table(seed=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"booster": "gblinear"}, "must be gbtree or dart to be exported, but is gblinear"),
     ({"multi_strategy": "multi_output_tree"}, "must hold one value.*one_output_per_tree")],
)  # fmt: skip
def test_xgboost_models_that_cannot_be_exported(tmp_path, options, message):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    from tvmopt.errors import ModelError

    rows = table()
    wanted = np.stack([rows.sum(axis=1), rows["column 0"]], axis=1)
    model = xgboost.XGBRegressor(n_estimators=2, **options).fit(rows, wanted)
    with pytest.raises(ModelError, match=message):
        exported(tmp_path, mlflow.xgboost, model, rows, trust=False)


def test_thresholds_of_xgboost_are_exclusive():
    from tvmopt.exporters.xgboost_graph import below

    for threshold in np.float32([0.5, -3.25, 0.0, 1e-38, -1e-38, 1e30]):
        limit = below(np.float32([threshold]))[0]
        around = [np.nextafter(threshold, np.float32(sign * np.inf)) for sign in (-1, 1)]
        for value in np.float32([threshold, *around, 0.0, 1.0, -1.0]):
            if value == 0 or abs(value) >= np.finfo(np.float32).tiny:
                assert (value <= limit) == (value < threshold), (value, threshold)


_LIGHTGBM = {
    "forest": {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.7},
    "roots": {"reg_sqrt": True},
    "poisson": {"objective": "poisson"},
    "cross entropy": {"objective": "cross_entropy"},
}


@pytest.mark.parametrize("name", list(_LIGHTGBM))
def test_lightgbm_regressors(tmp_path, name):
    lightgbm = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    rows = table()
    wanted = labels(rows, 2 if name == "cross entropy" else 4)
    model = lightgbm.LGBMRegressor(n_estimators=6, verbose=-1, **_LIGHTGBM[name])
    model.fit(rows, wanted)
    found = exported(tmp_path, mlflow.lightgbm, model, rows)
    _numbers_are_equal(found, model, table(seed=1))


def test_lightgbm_classes_one_by_one(tmp_path):
    lightgbm = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    rows = table()
    model = lightgbm.LGBMClassifier(n_estimators=6, verbose=-1, objective="multiclassova")
    model.fit(rows, labels(rows, 3))
    found = exported(tmp_path, mlflow.lightgbm, model, rows)
    fresh = table(seed=1)
    np.testing.assert_array_equal(found.run(fresh), model.predict(fresh))
