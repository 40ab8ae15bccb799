"""More source models: kinds that ``registry_sources`` does not hold, as users log them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.registry_sources import FittedSource, households

_TRAIN, _ROWS, _COLUMNS, _EXAMPLE = 500, 3000, 12, 20
_SHARES = {"pyfunc_predict_fn": "predict_proba"}
Data = tuple[Any, np.ndarray]


def _numbers(classes: int = 3, *, missing: bool = False) -> Data:
    import pandas
    from sklearn.datasets import make_classification

    values, labels = make_classification(
        _TRAIN + _ROWS, _COLUMNS, n_informative=8, n_classes=classes, random_state=3
    )
    if missing:
        values[np.random.default_rng(1).random(values.shape) < 0.1] = np.nan
    return pandas.DataFrame(values, columns=[f"f{at}" for at in range(_COLUMNS)]), labels


def _values() -> Data:
    table, _ = _numbers()
    return table, (table.sum(axis=1) + 3 * np.sin(table["f0"])).to_numpy()


def _several() -> Data:
    table, values = _values()
    return table, np.stack([values, -values, table["f1"].to_numpy()], axis=1)


def _positive() -> Data:
    table, values = _values()
    return table, np.abs(values) + 0.1


def _texts() -> Data:
    return households(_TRAIN + _ROWS, size=("S", "M", "L"))


def _wide() -> Data:
    table, labels = _numbers()
    return table * 1e4 + 1e6, labels


@dataclasses.dataclass(frozen=True)
class UnseenSource:
    """How to fit a model that is not in the list of ``registry_models``.

    Attributes:
        make: Makes the estimator.
        data: Makes table and labels.
        flavor: Its MLflow flavor.
        arguments: More arguments of ``log_model``.
    """

    make: Callable[[], Any]
    data: Callable[[], Data] = _numbers
    flavor: str = "sklearn"
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self) -> FittedSource:
        """Return the fitted model with its rows."""
        table, labels = self.data()
        model = self.make().fit(table[:_TRAIN], labels[:_TRAIN])
        pickled = {} if self.flavor == "xgboost" else {"serialization_format": "cloudpickle"}
        arguments = {**pickled, **self.arguments}
        return FittedSource(
            self.flavor, model, table[_TRAIN:], table[:_EXAMPLE], arguments, trust=True
        )


def _encoded(encoder: Any, model: Any) -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline

    numbers = SimpleImputer(strategy="median", add_indicator=True)
    parts = [("texts", encoder, ["city", "size"]), ("numbers", numbers, ["age", "income"])]
    return Pipeline([("encode", ColumnTransformer(parts)), ("predict", model)])


def _sklearn() -> dict[str, UnseenSource]:
    from sklearn import (
        cluster,
        cross_decomposition,
        discriminant_analysis,
        ensemble,
        linear_model,
        naive_bayes,
        neighbors,
        preprocessing,
        svm,
        tree,
    )  # fmt: skip
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.decomposition import PCA
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline

    forest: Callable[[], Any] = lambda: ensemble.RandomForestClassifier(20, random_state=0)  # noqa: E731
    scaler = preprocessing.StandardScaler

    def voters() -> list[tuple[str, Any]]:
        return [("a", linear_model.LogisticRegression(max_iter=500)), ("b", forest()),
                ("c", naive_bayes.GaussianNB())]  # fmt: skip

    one = UnseenSource
    return {
        "extra_trees_regressor": one(
            lambda: ensemble.ExtraTreesRegressor(50, random_state=0), _values
        ),
        "forest_of_3_values": one(
            lambda: ensemble.RandomForestRegressor(20, random_state=0), _several
        ),
        "decision_tree": one(lambda: tree.DecisionTreeClassifier(random_state=0)),
        "adaboost": one(lambda: ensemble.AdaBoostClassifier(n_estimators=20, random_state=0)),
        "bagging": one(lambda: ensemble.BaggingClassifier(random_state=0), arguments=_SHARES),
        "voting_hard": one(lambda: ensemble.VotingClassifier(voters())),
        "voting_soft": one(
            lambda: ensemble.VotingClassifier(voters(), voting="soft"), arguments=_SHARES
        ),
        "stacking": one(lambda: ensemble.StackingClassifier(voters()), arguments=_SHARES),
        "scaled_knn": one(lambda: make_pipeline(scaler(), neighbors.KNeighborsClassifier(7))),
        "gaussian_nb": one(naive_bayes.GaussianNB, arguments=_SHARES),
        "linear_svc": one(svm.LinearSVC),
        "calibrated": one(lambda: CalibratedClassifierCV(svm.LinearSVC()), arguments=_SHARES),
        "ridge_cv": one(linear_model.RidgeCV, _values),
        "elastic_net": one(lambda: linear_model.ElasticNet(0.01), _values),
        "sgd": one(lambda: linear_model.SGDClassifier(random_state=0)),
        "pls": one(lambda: cross_decomposition.PLSRegression(3), _values),
        "pca_svc": one(lambda: make_pipeline(scaler(), PCA(5), svm.SVC())),
        "wide_scaled_svc": one(lambda: make_pipeline(scaler(), svm.SVC()), _wide),
        "scaled_svr": one(lambda: make_pipeline(scaler(), svm.SVR(C=10)), _values),
        "one_class_svm": one(svm.OneClassSVM),
        "scaled_forest": one(lambda: make_pipeline(scaler(), forest()), _wide),
        "polynomial": one(
            lambda: make_pipeline(preprocessing.PolynomialFeatures(2), linear_model.Ridge()),
            _values,
        ),
        "k_bins": one(
            lambda: make_pipeline(
                preprocessing.KBinsDiscretizer(5), linear_model.LogisticRegression()
            ),
            arguments=_SHARES,
        ),
        "quantiles": one(
            lambda: make_pipeline(
                preprocessing.QuantileTransformer(n_quantiles=100),
                linear_model.LogisticRegression(),
            ),
            arguments=_SHARES,
        ),
        "logarithm": one(
            lambda: make_pipeline(
                preprocessing.FunctionTransformer(np.log1p), linear_model.LinearRegression()
            ),
            lambda: (_numbers()[0].abs(), _values()[1]),
        ),
        "one_hot_forest": one(
            lambda: _encoded(preprocessing.OneHotEncoder(handle_unknown="ignore"), forest()),
            _texts,
        ),
        "ordinal_forest": one(lambda: _encoded(preprocessing.OrdinalEncoder(), forest()), _texts),
        "target_encoder": one(
            lambda: _encoded(preprocessing.TargetEncoder(), ensemble.GradientBoostingClassifier()),
            _texts,
        ),
        "one_vs_rest": one(
            lambda: OneVsRestClassifier(linear_model.LogisticRegression()), arguments=_SHARES
        ),
        "discriminant": one(discriminant_analysis.LinearDiscriminantAnalysis, arguments=_SHARES),
        "k_means": one(lambda: cluster.KMeans(5, random_state=0)),
    }


def _boosted() -> dict[str, UnseenSource]:
    import lightgbm
    import xgboost
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def two() -> Data:
        return _numbers(2)

    def xgb(name: str, data: Callable[[], Data] = _numbers, **options: Any) -> UnseenSource:
        make = lambda: getattr(xgboost, name)(n_estimators=20, **options)  # noqa: E731
        return UnseenSource(make, data, "xgboost")

    def lgb(name: str, data: Callable[[], Data] = _numbers, **options: Any) -> UnseenSource:
        make = lambda: getattr(lightgbm, name)(n_estimators=20, verbose=-1, **options)  # noqa: E731
        return UnseenSource(make, data, "lightgbm")

    bagged: dict[str, Any] = {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.7}
    return {
        "xgb_multiclass": xgb("XGBClassifier"),
        "xgb_dart": xgb("XGBClassifier", two, booster="dart", rate_drop=0.3),
        "xgb_base_score": xgb("XGBRegressor", _values, base_score=3.5),
        "xgb_poisson": xgb("XGBRegressor", _positive, objective="count:poisson"),
        "xgb_quantiles": xgb(
            "XGBRegressor", _values, objective="reg:quantileerror", quantile_alpha=[0.1, 0.9]
        ),
        "xgb_hinge": xgb("XGBClassifier", two, objective="binary:hinge"),
        "xgb_forest": xgb("XGBRFClassifier"),
        "xgb_3_values": xgb("XGBRegressor", _several),
        "xgb_in_pipeline": UnseenSource(
            lambda: make_pipeline(StandardScaler(), xgboost.XGBClassifier(n_estimators=20))
        ),
        "lgb_multiclass": lgb("LGBMClassifier"),
        "lgb_dart": lgb("LGBMClassifier", two, boosting_type="dart"),
        "lgb_forest": lgb("LGBMClassifier", **bagged),
        "lgb_one_vs_all": lgb("LGBMClassifier", objective="multiclassova"),
        "lgb_poisson": lgb("LGBMRegressor", _positive, objective="poisson"),
        "lgb_in_pipeline": UnseenSource(
            lambda: make_pipeline(
                StandardScaler(), lightgbm.LGBMClassifier(n_estimators=20, verbose=-1)
            )
        ),
    }


def unseen_sources() -> dict[str, UnseenSource]:
    """Return the models by name."""
    return {**_sklearn(), **_boosted()}
