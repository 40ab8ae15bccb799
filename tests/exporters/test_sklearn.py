"""scikit-learn models: the ONNX model answers as the source, for labels, numbers and refusals."""

from __future__ import annotations

import mlflow
import numpy as np
import pandas
import pytest
import yaml

from tests.exporters.saved import exported, labels, save, table
from tvmopt.errors import ConfigError, ModelError
from tvmopt.exporters.source import describe
from tvmopt.exporters.unknown_categories import accept_unknown
from tvmopt.frontend.categories import read_tables, without_strings

pytest.importorskip("skl2onnx", reason="the extra sklearn is not installed")
CLOUDPICKLE = {"serialization_format": "cloudpickle"}


def _classifiers():
    from sklearn import ensemble, linear_model, neural_network, svm, tree

    return {
        "logistic": linear_model.LogisticRegression(),
        "forest": ensemble.RandomForestClassifier(20, random_state=0),
        "extra trees": ensemble.ExtraTreesClassifier(10, random_state=0),
        "histogram": ensemble.HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=5),
        "boosting": ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0),
        "svc": svm.SVC(),
        "mlp": neural_network.MLPClassifier((8,), max_iter=20, random_state=0),
        "tree": tree.DecisionTreeClassifier(max_depth=4, random_state=0),
    }


@pytest.mark.sample(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", list(_classifiers()))
def test_labels_of_texts_are_equal(tmp_path, name, classes):
    rows = table()
    words = np.array(["low", "high", "middle"])[labels(rows, classes)]
    model = _classifiers()[name].fit(rows, words)
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    fresh = table(seed=1)
    got, want = found.run(fresh), model.predict(fresh)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == want.dtype
    first = found.model.graph.output[0]  # the metric of the workflow reads scores of classes here
    assert first.type.tensor_type.shape.dim[1].dim_value == classes
    assert found.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "rows"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["logistic", "forest", "histogram", "boosting", "mlp"])
def test_probabilities_are_equal(tmp_path, name):
    rows = table()
    model = _classifiers()[name].fit(rows, labels(rows))
    options = {**CLOUDPICKLE, "pyfunc_predict_fn": "predict_proba"}
    found = exported(tmp_path, mlflow.sklearn, model, rows, **options)
    fresh = table(seed=1)
    got, want = found.run(fresh), model.predict_proba(fresh)
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)


def test_ties_of_a_forest_go_to_the_class_of_the_source(tmp_path):
    # An even number of whole trees ties in many rows; float32 sums of 1/20 would decide at random.
    from sklearn.ensemble import RandomForestClassifier

    rows = table()
    model = RandomForestClassifier(20, random_state=1).fit(rows, np.arange(len(rows)) % 2)
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    fresh = pandas.concat([table(seed=seed) for seed in range(2, 12)])
    shares = model.predict_proba(fresh)
    assert (shares[:, 0] == 0.5).sum() > 100
    np.testing.assert_array_equal(found.run(fresh), model.predict(fresh))


def test_histogram_boosting_compares_float64_and_takes_missing_values(tmp_path):
    from sklearn.ensemble import HistGradientBoostingRegressor

    rows = table(missing=True)
    values = np.nan_to_num(rows.to_numpy()).sum(axis=1)
    model = HistGradientBoostingRegressor(max_iter=10).fit(rows, values)
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    near = rows.copy()
    threshold = model._predictors[0][0].nodes["num_threshold"][0]
    feature = model._predictors[0][0].nodes["feature_idx"][0]
    near.iloc[:, feature] = np.nextafter(threshold, np.inf)  # float32 would round it down
    for case in (table(missing=True, seed=1), near):
        got, want = found.run(case), model.predict(case)
        np.testing.assert_allclose(got, want, atol=1e-5)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)


def test_isolation_forest_is_one_ensemble(tmp_path):
    from sklearn.ensemble import IsolationForest

    rows = table()
    model = IsolationForest(n_estimators=10, max_features=3, random_state=0).fit(rows)
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    kinds = [node.op_type for node in found.model.graph.node]
    assert kinds.count("TreeEnsembleRegressor") == 1
    fresh = table(seed=1) * 2
    np.testing.assert_array_equal(found.run(fresh), model.predict(fresh))
    assert set(found.run(fresh)) == {-1, 1}


def _mixed(count=300):
    random = np.random.default_rng(0)
    return pandas.DataFrame(
        {
            "age": np.where(random.random(count) < 0.1, np.nan, random.normal(40, 10, count)),
            "rooms": random.integers(1, 5, count),
            "city": random.choice(np.array(["Bern", "Graz", "Lyon"]), count),
        }
    )


def _mixed_model(rows, handle_unknown):
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = Pipeline([("fill", SimpleImputer()), ("scale", StandardScaler())])
    encode = ColumnTransformer(
        [
            ("numbers", numbers, ["age"]),
            ("words", OneHotEncoder(handle_unknown=handle_unknown), ["rooms", "city"]),
        ]
    )
    model = Pipeline([("encode", encode), ("classify", LogisticRegression())])
    return model.fit(rows, np.where((rows.city == "Bern") ^ (rows.rooms > 2), "yes", "no"))


def test_columns_of_numbers_and_texts(tmp_path):
    rows = _mixed()
    model = _mixed_model(rows, "ignore")
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    np.testing.assert_array_equal(found.run(rows), model.predict(rows))
    tables = read_tables(without_strings(found.model))
    assert {"Bern", "Graz", "Lyon"} <= set(tables.inputs["city"])
    reordered = rows[["city", "age", "rooms"]]
    np.testing.assert_array_equal(found.run(reordered), model.predict(rows))
    strange = rows.assign(city="Oslo", rooms=99)
    np.testing.assert_array_equal(found.run(strange), model.predict(strange))


def test_values_that_the_source_refuses_are_refused(tmp_path):
    rows = _mixed()
    model = _mixed_model(rows, "error")
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    np.testing.assert_array_equal(found.run(rows), model.predict(rows))
    for change, message in (
        ({"city": "Oslo"}, "'city' must hold categories that the source was fitted on.*'Oslo'"),
        ({"rooms": 99}, "'rooms' must hold categories.*99"),
        ({"age": np.inf}, "'age' must be finite"),
    ):
        with pytest.raises(ValueError, match=r".+"):
            model.predict(rows.assign(**change))
        with pytest.raises(ConfigError, match=message):
            found.run(rows.assign(**change))
    with pytest.raises(ConfigError, match=r"columns of the source.*'city' missing"):
        found.run(rows.drop(columns="city"))


def test_missing_values_are_refused_where_the_source_refuses_them(tmp_path):
    from sklearn.linear_model import LogisticRegression

    rows = table()
    model = LogisticRegression().fit(rows, labels(rows))
    found = exported(tmp_path, mlflow.sklearn, model, rows)
    with pytest.raises(ConfigError, match=r"'column 1' must hold no missing values.*1 of 400"):
        found.run(rows.assign(**{"column 1": [np.nan, *rows["column 1"][1:]]}))


@pytest.mark.parametrize("classes", [2, 3])
def test_histogram_boosting_on_texts_as_categories(tmp_path, classes):
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows = _mixed()
    random = np.random.default_rng(3)
    rows["kind"] = [f"kind {one}" for one in random.integers(0, 40, len(rows))]  # two words of bits
    shares = rows.assign(city=rows.city == "Graz", kind=rows.kind.str[-1] == "3").astype(float)
    wanted = labels(shares, classes)
    model = HistGradientBoostingClassifier(max_iter=8, categorical_features="from_dtype")
    model.fit(rows.astype({"city": "category", "kind": "category"}), wanted)
    options = {**CLOUDPICKLE, "pyfunc_predict_fn": "predict_proba"}
    found = exported(tmp_path, mlflow.sklearn, model, rows, **options)
    strange = rows.assign(city=[None, "Oslo", *rows.city[2:]], kind=["", "kind 1", *rows.kind[2:]])
    for case in (rows, strange):
        np.testing.assert_allclose(found.run(case), model.predict_proba(case), atol=1e-5)


def test_histogram_boosting_on_numbers_as_categories(tmp_path):
    from sklearn.ensemble import HistGradientBoostingRegressor

    rows = table(missing=True)
    rows["column 3"] = np.arange(len(rows)) % 7 * 2.0
    wanted = np.nan_to_num(rows["column 0"]) + (rows["column 3"] % 3)
    model = HistGradientBoostingRegressor(max_iter=8, categorical_features=[3])
    model.fit(rows, wanted)
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    for value in (4.0, 5.0, -1.0, 1e9, np.nan):
        case = rows.assign(**{"column 3": value})
        np.testing.assert_allclose(found.run(case), model.predict(case), atol=1e-5)


def _zeros(model):
    return [
        next((a.i for a in node.attribute if a.name == "zeros"), 1)
        for node in model.graph.node
        if node.op_type == "OneHotEncoder"
    ]


def test_strict_encoders_compile_as_the_front_refuses_for_them(tmp_path):
    rows = _mixed()
    found = exported(tmp_path, mlflow.sklearn, _mixed_model(rows, "error"), rows, **CLOUDPICKLE)
    assert _zeros(found.model) == [1, 1]
    allowed = {column.name: column.allowed for column in found.interface.columns}
    assert allowed == {"age": None, "rooms": (1, 2, 3, 4), "city": ("Bern", "Graz", "Lyon")}


@pytest.mark.parametrize("guarded", [True, False])
def test_encoders_that_nothing_guards_stay_strict(guarded):
    from onnx import helper

    kinds = {"cats_int64s": [1, 2], "zeros": 0}
    nodes = [helper.make_node("OneHotEncoder", ["x"], ["y"], domain="ai.onnx.ml", **kinds)]
    model = helper.make_model(helper.make_graph(nodes, "g", [], []))
    accept_unknown(model, lambda: guarded)
    assert _zeros(model) == [int(guarded)]


def test_a_category_that_a_later_encoder_refuses_is_no_category_of_the_column(tmp_path):
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

    rows = _mixed()[["city"]]
    model = make_pipeline(OrdinalEncoder(), OneHotEncoder(), LinearRegression())
    model.fit(rows, np.arange(len(rows)) % 5)
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    np.testing.assert_allclose(found.run(rows), model.predict(rows), atol=1e-5)
    with pytest.raises(ConfigError, match=r"'city' must hold categories.*'Oslo'"):
        found.run(rows.assign(city="Oslo"))


def test_numbers_beyond_float32_are_refused_where_the_source_refuses_them(tmp_path):
    from sklearn.ensemble import RandomForestClassifier

    rows = table()
    model = RandomForestClassifier(4, random_state=0).fit(rows, labels(rows))
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    wide = rows.assign(**{"column 2": 1e300})
    with pytest.raises(ValueError, match="too large for dtype"):
        model.predict(wide)
    with pytest.raises(ConfigError, match=r"'column 2' must hold numbers of at most 3\.40282e\+38"):
        found.run(wide)


def test_wide_values_need_float64(tmp_path):
    # Values around 1e6 that differ by 0.01: float32 rounds to 0.06.
    from sklearn.linear_model import LinearRegression

    rows = table() * 0.01 + 1e6
    model = LinearRegression().fit(rows, rows.sum(axis=1) - 5e6)
    found = exported(tmp_path, mlflow.sklearn, model, rows, **CLOUDPICKLE)
    assert found.model.graph.input[0].type.tensor_type.elem_type == 11  # DOUBLE


def test_a_pickle_needs_trust_and_is_not_read_without(tmp_path):
    from sklearn.linear_model import LogisticRegression

    rows = table()
    model = LogisticRegression().fit(rows, labels(rows))
    saved, said = save(tmp_path, mlflow.sklearn, model, rows, labels(rows), **CLOUDPICKLE)
    (saved / "model.pkl").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    source = describe("models:/m/1", said["flavors"], said["signature"], trust=False)
    from tvmopt.exporters.sklearn import export_sklearn

    with pytest.raises(ConfigError, match=r"must be trusted.*cloudpickle.*add trust=true"):
        export_sklearn(source, saved, "float32")


def test_a_skops_file_of_plain_types_needs_no_trust(tmp_path):
    from sklearn.linear_model import LogisticRegression

    rows = table()
    model = LogisticRegression().fit(rows, labels(rows))
    found = exported(
        tmp_path, mlflow.sklearn, model, rows, trust=False, serialization_format="skops"
    )
    np.testing.assert_array_equal(found.run(rows), model.predict(rows))


def test_a_skops_file_of_trees_needs_trust(tmp_path):
    from sklearn.tree import DecisionTreeClassifier

    rows = table()
    model = DecisionTreeClassifier(max_depth=2).fit(rows, labels(rows))
    options = {"serialization_format": "skops", "skops_trusted_types": ["sklearn.tree._tree.Tree"]}
    with pytest.raises(ConfigError, match=r"must be trusted.*sklearn\.tree\._tree\.Tree"):
        exported(tmp_path, mlflow.sklearn, model, rows, trust=False, **options)


def test_models_that_cannot_be_exported(tmp_path):
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline

    rows = _mixed().assign(city=lambda t: t.city.astype(str))
    words = Pipeline(
        [
            ("words", ColumnTransformer([("text", TfidfVectorizer(), "city")])),
            ("classify", LogisticRegression()),
        ]
    ).fit(rows, labels(table())[:300])
    with pytest.raises(ModelError, match=r"strings of a model must|skl2onnx must convert"):
        exported(tmp_path, mlflow.sklearn, words, rows, **CLOUDPICKLE)


def test_a_model_without_signature_is_refused(tmp_path):
    from sklearn.linear_model import LogisticRegression

    rows = table()
    mlflow.sklearn.save_model(LogisticRegression().fit(rows, labels(rows)), str(tmp_path / "m"))
    said = yaml.safe_load((tmp_path / "m" / "MLmodel").read_text())
    with pytest.raises(ConfigError, match=r"must have a signature.*infer_signature"):
        describe("models:/m/1", said["flavors"], said.get("signature"), trust=True)
