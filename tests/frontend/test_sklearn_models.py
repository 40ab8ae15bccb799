"""Models of scikit-learn, exported by skl2onnx: compiled without ONNX Runtime, the same answers."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    KBinsDiscretizer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, OneClassSVM

import tvmopt

skl2onnx = pytest.importorskip("skl2onnx")
pd = pytest.importorskip("pandas")
from skl2onnx.common.data_types import (  # noqa: E402  # may be missing
    FloatTensorType,
    StringTensorType,
)

_OPSETS = {"": 18, "ai.onnx.ml": 3}
_ROWS, _COMPILED_ROWS = 10_000, 500


def _numbers(rows, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 5)).astype("float32")
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(int) + (x[:, 3] > 1)


def _compiled(model, types, rows=_COMPILED_ROWS):
    exported = skl2onnx.convert_sklearn(model, initial_types=types, target_opset=_OPSETS)
    shapes = {name: [rows, *kind.shape[1:]] for name, kind in types}
    compiled = tvmopt.compile(exported, shapes, threads=1)
    assert compiled.metadata.segments == 0
    return compiled


_TRAIN = _numbers(200, 0)
_NAMES = np.array(["cat", "dog", "emu"])


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "model",
    [
        make_pipeline(StandardScaler(), LogisticRegression()),
        make_pipeline(
            Normalizer(), PolynomialFeatures(2, include_bias=False), LogisticRegression()
        ),
        make_pipeline(KBinsDiscretizer(3, encode="ordinal"), Binarizer(), GaussianNB()),
        SVC(probability=True, random_state=0),
        MLPClassifier((8,), max_iter=20, random_state=0),
        KNeighborsClassifier(3),
    ],
    ids=["scaled", "polynomials", "bins", "svc", "mlp", "neighbours"],
)
@pytest.mark.filterwarnings("ignore")  # of scikit-learn: training ends early
def test_classifiers_of_numbers(model) -> None:
    x, y = _TRAIN
    model.fit(x, _NAMES[y])
    compiled = _compiled(model, [("x", FloatTensorType([None, 5]))])
    rows, _ = _numbers(_ROWS, 1)
    labels, scores = compiled(rows)
    assert list(compiled.metadata.outputs[0].categories)[:3] == list(_NAMES)
    assert compiled.metadata.outputs[1].columns == tuple(_NAMES)
    np.testing.assert_array_equal(labels, model.predict(rows))
    np.testing.assert_allclose(scores, model.predict_proba(rows), atol=1e-5)


@pytest.mark.parametrize(
    "model", [SVR(), OneClassSVM(kernel="sigmoid")], ids=["regressor", "one class"]
)
def test_other_support_vectors(model) -> None:
    x, _ = _TRAIN
    model.fit(x, x[:, 0] * x[:, 1])
    compiled = _compiled(model, [("x", FloatTensorType([None, 5]))])
    rows, _ = _numbers(_ROWS, 1)
    got = compiled(rows)[0].ravel()
    np.testing.assert_allclose(got, model.predict(rows), atol=2e-5)


def _table(rows, seed, colours=("red", "green", "blue")):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "size": rng.normal(size=rows).astype("float32"),
            "age": rng.normal(size=rows).astype("float32"),
            "colour": rng.choice(list(colours), rows),
            "shape": rng.choice(["round", "square", ""], rows),
        }
    )


@pytest.fixture(scope="module")
def tables():
    """A model of a table with strings: the pipeline, and it compiled, in memory and from a file."""
    train = _table(300, 0)
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    filled = SimpleImputer(strategy="most_frequent", missing_values="")
    one_hot = make_pipeline(filled, OneHotEncoder(handle_unknown="ignore"))
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = ColumnTransformer(
        [
            ("numbers", numbers, ["size", "age"]),
            ("one hot", one_hot, ["colour", "shape"]),
            ("ordinal", ordinal, ["shape"]),
        ]
    )
    y = (train["size"] > 0).to_numpy() * 1 + (train["colour"] == "red").to_numpy()
    model = make_pipeline(columns, LogisticRegression()).fit(train, _NAMES[y])
    kinds = [
        (
            name,
            FloatTensorType([None, 1]) if name in ("size", "age") else StringTensorType([None, 1]),
        )
        for name in train
    ]
    return model, _compiled(model, kinds)


def _inputs(table):
    return {name: table[name].to_numpy()[:, None] for name in table}


def test_strings_of_a_table(tables) -> None:
    model, compiled = tables
    table = _table(_ROWS, 1, ("red", "green", "blue", "never seen"))
    table.loc[:99, "size"] = np.nan
    labels, scores = compiled(_inputs(table))
    np.testing.assert_array_equal(labels, model.predict(table))
    np.testing.assert_allclose(scores, model.predict_proba(table), atol=1e-5)
    specs = {spec.name: spec for spec in compiled.metadata.inputs}
    assert set(specs["colour"].categories) >= {"red", "green", "blue"}
    assert "never seen" not in specs["colour"].categories


def test_codes_serve_as_well_as_strings(tables) -> None:
    _, compiled = tables
    inputs = _inputs(_table(700, 2))
    codes = dict(inputs)
    for spec in compiled.metadata.inputs:
        if spec.categories:
            table = list(spec.categories)
            found = [table.index(text) if text in table else -1 for text in inputs[spec.name][:, 0]]
            codes[spec.name] = np.array(found)[:, None]
    for got, want in zip(compiled(codes), compiled(inputs), strict=True):
        np.testing.assert_array_equal(got, want)
    assert compiled.coded(codes)[0].dtype == np.int64


def test_values_that_are_no_strings(tables) -> None:
    _, compiled = tables
    inputs = _inputs(_table(500, 2))
    with pytest.raises(tvmopt.errors.ConfigError, match="'colour' must hold strings, or int64"):
        compiled(inputs | {"colour": np.zeros((500, 1))})
    with pytest.raises(tvmopt.errors.ConfigError, match=r"must be from -1 \(unknown\) to"):
        compiled(inputs | {"colour": np.full((500, 1), 99)})
