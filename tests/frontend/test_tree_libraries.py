"""Models of scikit-learn, XGBoost and LightGBM, converted to ONNX, against their own predictions.

HistGradientBoosting is not here: skl2onnx 1.20 gives booleans to onnx 1.23, which takes integers.
"""

from __future__ import annotations

import numpy as np
import pytest

from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, prepare
from tvmopt.stages.check import compile_for_check

_ROWS, _FEATURES = 37, 6


def _sample(classes=0):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, _FEATURES)).astype("float32")
    score = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + x[:, 3]
    if classes:
        return x, np.digitize(score, np.linspace(-1, 1, classes - 1))
    return x, score.astype("float32")


def _compiled(made, x):
    """Return the outputs; the names of dynamic dimensions differ by library."""
    [value] = made.graph.input
    shapes = {value.name: x.shape}
    mod = import_onnx(prepare(made, shapes).model)
    return compile_for_check(mod, resolve_target("host", 1))([x])


def _skl2onnx(model, x):
    skl2onnx = pytest.importorskip("skl2onnx")
    options = {id(model): {"zipmap": False}} if hasattr(model, "classes_") else None
    return skl2onnx.to_onnx(model, x[:1], options=options, target_opset={"": 17, "ai.onnx.ml": 3})


def _onnxmltools(convert, model, **options):
    tools = pytest.importorskip("onnxmltools")
    types = pytest.importorskip("onnxmltools.convert.common.data_types")
    kind = types.FloatTensorType([None, _FEATURES])
    convert = getattr(tools, convert)
    return convert(model, initial_types=[("x", kind)], target_opset=15, **options)


@pytest.mark.parametrize(
    "name",
    ["DecisionTreeRegressor", "RandomForestRegressor", "ExtraTreesRegressor",
     "GradientBoostingRegressor"],
)  # fmt: skip
def test_regressors_of_scikit_learn(name) -> None:
    sklearn = pytest.importorskip("sklearn")
    x, y = _sample()
    kind = getattr(__import__(f"{sklearn.__name__}.{_module(name)}", fromlist=[name]), name)
    model = kind(random_state=0, max_depth=5).fit(x, y)
    got = _compiled(_skl2onnx(model, x), x[:_ROWS])[0]
    np.testing.assert_allclose(got[:, 0], model.predict(x[:_ROWS]), rtol=1e-4, atol=1e-5)


@pytest.mark.sample(2)
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", ["RandomForestClassifier", "GradientBoostingClassifier"])
def test_classifiers_of_scikit_learn(name, classes) -> None:
    sklearn = pytest.importorskip("sklearn")
    x, y = _sample(classes)
    kind = getattr(__import__(f"{sklearn.__name__}.{_module(name)}", fromlist=[name]), name)
    model = kind(random_state=0, max_depth=4).fit(x, y)
    labels, scores = _compiled(_skl2onnx(model, x), x[:_ROWS])
    np.testing.assert_array_equal(labels, model.predict(x[:_ROWS]))
    np.testing.assert_allclose(scores, model.predict_proba(x[:_ROWS]), rtol=1e-4, atol=1e-5)


def _module(name):
    return "tree" if name.startswith("Decision") else "ensemble"


def test_xgboost_with_missing_values() -> None:
    xgboost = pytest.importorskip("xgboost")
    x, y = _sample()
    x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    model = xgboost.XGBRegressor(n_estimators=20, max_depth=4, n_jobs=1).fit(x, y)
    got = _compiled(_onnxmltools("convert_xgboost", model), x[:_ROWS])[0]
    np.testing.assert_allclose(got[:, 0], model.predict(x[:_ROWS]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 4])
def test_classifiers_of_xgboost(classes) -> None:
    xgboost = pytest.importorskip("xgboost")
    x, y = _sample(classes)
    model = xgboost.XGBClassifier(n_estimators=20, max_depth=4, n_jobs=1).fit(x, y)
    labels, scores = _compiled(_onnxmltools("convert_xgboost", model), x[:_ROWS])[:2]
    np.testing.assert_array_equal(labels, model.predict(x[:_ROWS]))
    np.testing.assert_allclose(scores, model.predict_proba(x[:_ROWS]), rtol=1e-4, atol=1e-5)


def test_lightgbm_with_missing_values() -> None:
    lightgbm = pytest.importorskip("lightgbm")
    x, y = _sample()
    x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    model = lightgbm.LGBMRegressor(n_estimators=20, max_depth=4, n_jobs=1, verbose=-1).fit(x, y)
    made = _onnxmltools("convert_lightgbm", model.booster_, zipmap=False)
    got = _compiled(made, x[:_ROWS])[0]
    want = model.booster_.predict(x[:_ROWS])
    np.testing.assert_allclose(got[:, 0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 4])
def test_classifiers_of_lightgbm(classes) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    x, y = _sample(classes)
    model = lightgbm.LGBMClassifier(n_estimators=20, max_depth=4, n_jobs=1, verbose=-1).fit(x, y)
    made = _onnxmltools("convert_lightgbm", model, zipmap=False)
    labels, scores = _compiled(made, x[:_ROWS])
    np.testing.assert_array_equal(labels, model.predict(x[:_ROWS]))
    np.testing.assert_allclose(scores, model.predict_proba(x[:_ROWS]), rtol=1e-4, atol=1e-5)
