"""Source models of ``registry_models``: one function a model, which fits it and gives its rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_TRAIN, _ROWS, _COLUMNS = 2000, 10_000, 20


@dataclasses.dataclass(frozen=True)
class FittedSource:
    """A fitted model.

    Attributes:
        flavor: Its MLflow flavor.
        model: The model.
        table: 10,000 rows that it was not fitted on.
        example: Rows for signature and input example.
        arguments: More arguments of ``log_model``.
        trust: Whether its file is a pickle, which needs ``trust=true``.
    """

    flavor: str
    model: Any
    table: Any
    example: Any
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    trust: bool = False


def _numbers(classes: int = 3, *, missing: bool = False) -> tuple[Any, np.ndarray]:
    import pandas
    from sklearn.datasets import make_classification

    values, labels = make_classification(
        _TRAIN + _ROWS, _COLUMNS, n_informative=10, n_classes=classes, random_state=0
    )
    if missing:
        values[np.random.default_rng(1).random(values.shape) < 0.1] = np.nan
    names = [f"feature {number}" for number in range(_COLUMNS)]
    return pandas.DataFrame(values, columns=names), labels


def _fitted(
    flavor: str, model: Any, table: Any, labels: np.ndarray, **arguments: Any
) -> FittedSource:
    model.fit(table[:_TRAIN], labels[:_TRAIN])
    return FittedSource(flavor, model, table[_TRAIN:], table[:50], arguments)


def _sklearn(make: Callable[[], Any], *, missing: bool = False, **arguments: Any) -> FittedSource:
    pickled = {**arguments, "serialization_format": "cloudpickle"}
    found = _fitted("sklearn", make(), *_numbers(missing=missing), **pickled)
    return dataclasses.replace(found, trust=True)


def logistic_regression() -> FittedSource:
    """Return a logistic regression with texts as classes."""
    from sklearn.linear_model import LogisticRegression

    table, labels = _numbers()
    names = np.array(["high", "low", "middle"])
    return _fitted("sklearn", LogisticRegression(max_iter=500), table, names[labels])


def random_forest() -> FittedSource:
    """Return a forest of 100 full trees that gives probabilities."""
    from sklearn.ensemble import RandomForestClassifier

    make = lambda: RandomForestClassifier(100, random_state=0)  # noqa: E731
    return _sklearn(make, pyfunc_predict_fn="predict_proba")


def random_forest_labels() -> FittedSource:
    """Return a forest of 100 full trees that gives labels."""
    from sklearn.ensemble import RandomForestClassifier

    return _sklearn(lambda: RandomForestClassifier(100, random_state=0))


def hist_gradient_boosting() -> FittedSource:
    """Return histogram gradient boosting on data with missing values."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return _sklearn(lambda: HistGradientBoostingClassifier(max_iter=50), missing=True)


def gradient_boosting() -> FittedSource:
    """Return gradient boosting of 50 rounds."""
    from sklearn.ensemble import GradientBoostingClassifier

    return _sklearn(lambda: GradientBoostingClassifier(n_estimators=50, random_state=0))


def svc() -> FittedSource:
    """Return a support vector classifier."""
    from sklearn.svm import SVC

    return _sklearn(SVC)


def mlp() -> FittedSource:
    """Return a multi-layer perceptron that gives probabilities."""
    from sklearn.neural_network import MLPClassifier

    make = lambda: MLPClassifier((64, 32), max_iter=100, random_state=0)  # noqa: E731
    return _sklearn(make, pyfunc_predict_fn="predict_proba")


def households(count: int, **more: Sequence[str]) -> tuple[Any, np.ndarray]:
    """Return a table of ``count`` rows with numbers, NaN and texts, and a label of each row.

    Args:
        count: Number of rows.
        more: Further columns, drawn from texts.
    """
    import pandas

    random = np.random.default_rng(0)
    texts = {"city": ("Bern", "Graz", "Lyon", "Turin"), **more}
    table = pandas.DataFrame(
        {
            "age": random.integers(18, 90, count).astype(float),
            "income": random.lognormal(10, 1, count),
            "rooms": random.integers(1, 6, count),
            **{name: random.choice(np.array(choices), count) for name, choices in texts.items()},
        }
    )
    score = table["age"] / 90 + (table["city"] == "Bern") + (table["rooms"] > 3)
    labels = np.where(score + random.normal(0, 0.5, count) > 1.2, "yes", "no")
    table.loc[random.random(count) < 0.1, "age"] = np.nan
    return table, labels


def pipeline() -> FittedSource:
    """Return a pipeline of imputer, scaler and one-hot encoders of numbers and of texts."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    table, labels = households(_TRAIN + _ROWS)
    numbers = Pipeline([("fill", SimpleImputer()), ("scale", StandardScaler())])
    encode = ColumnTransformer(
        [
            ("numbers", numbers, ["age", "income"]),
            ("rooms", OneHotEncoder(handle_unknown="ignore"), ["rooms"]),
            ("city", OneHotEncoder(handle_unknown="ignore"), ["city"]),
        ]
    )
    model = Pipeline([("encode", encode), ("classify", LogisticRegression())])
    return _fitted("sklearn", model, table, labels, skops_trusted_types=["numpy.dtype"])


def isolation_forest() -> FittedSource:
    """Return an outlier detector."""
    from sklearn.ensemble import IsolationForest

    return _sklearn(lambda: IsolationForest(n_estimators=50, random_state=0))


def xgboost_classifier() -> FittedSource:
    """Return XGBoost's classifier on data with missing values."""
    import xgboost

    table, labels = _numbers(missing=True)
    return _fitted("xgboost", xgboost.XGBClassifier(n_estimators=50), table, labels)


def xgboost_regressor() -> FittedSource:
    """Return XGBoost's regressor."""
    import xgboost

    table, _ = _numbers()
    values = table.sum(axis=1).to_numpy()
    return _fitted("xgboost", xgboost.XGBRegressor(n_estimators=50), table, values)


def lightgbm_classifier() -> FittedSource:
    """Return LightGBM's classifier on data with missing values."""
    import lightgbm

    model = lightgbm.LGBMClassifier(n_estimators=50, verbose=-1)
    return _fitted("lightgbm", model, *_numbers(missing=True))


def lightgbm_regressor() -> FittedSource:
    """Return LightGBM's regressor."""
    import lightgbm

    table, _ = _numbers()
    model = lightgbm.LGBMRegressor(n_estimators=50, verbose=-1)
    return _fitted("lightgbm", model, table, table.sum(axis=1).to_numpy())


def torch_cnn() -> FittedSource:
    """Return a small convolutional network, as ``.pt2``."""
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(128, 10), nn.Softmax(dim=1),
    ).eval()  # fmt: skip
    rows = np.random.default_rng(0).normal(size=(_ROWS, 1, 8, 8)).astype(np.float32)
    return FittedSource("pytorch", model, rows, rows[:16])


def torch_lstm() -> FittedSource:
    """Return an LSTM with a linear layer, as ``.pt2``."""
    import torch
    from torch import nn

    class LastStep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 16, batch_first=True)
            self.linear = nn.Linear(16, 3)

        def forward(self, sequence: torch.Tensor) -> torch.Tensor:
            return self.linear(self.lstm(sequence)[0][:, -1])

    rows = np.random.default_rng(0).normal(size=(_ROWS, 12, 8)).astype(np.float32)
    return FittedSource("pytorch", LastStep().eval(), rows, rows[:16])


SOURCES: dict[str, Callable[[], FittedSource]] = {
    make.__name__: make
    for make in (
        logistic_regression, random_forest, random_forest_labels, hist_gradient_boosting,
        gradient_boosting, svc, mlp, pipeline, isolation_forest, xgboost_classifier,
        xgboost_regressor, lightgbm_classifier, lightgbm_regressor, torch_cnn, torch_lstm,
    )
}  # fmt: skip
"""The models by name, in the order of the table."""
