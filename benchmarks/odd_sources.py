"""Source models of ``odd_rows``: small, and with columns of several kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.registry_sources import FittedSource

_ROWS, _EXAMPLE = 300, 20
_PICKLE = {"serialization_format": "cloudpickle"}


def _numbers(*, missing: bool = False) -> Any:
    """Return a table of four columns of fractions and one of whole numbers."""
    import pandas

    random = np.random.default_rng(0)
    values = random.normal(size=(_ROWS, 4))
    if missing:
        values[random.random(values.shape) < 0.1] = np.nan
    table = pandas.DataFrame(values, columns=["a", "b", "c", "d"])
    return table.assign(count=random.integers(0, 9, _ROWS))


def _mixed() -> Any:
    """Return a table of numbers, some of them missing, whole numbers and texts."""
    import pandas

    random = np.random.default_rng(1)
    return pandas.DataFrame(
        {
            "age": np.where(random.random(_ROWS) < 0.1, np.nan, random.normal(40, 10, _ROWS)),
            "rooms": random.integers(1, 5, _ROWS),
            "city": random.choice(np.array(["Bern", "Graz", "Lyon"]), _ROWS),
            "kind": random.choice(np.array(["flat", "house"]), _ROWS),
        }
    )


def _classes(table: Any) -> np.ndarray:
    """Return one of two classes for each row of a table, which depends on all columns."""
    total = sum(
        np.nan_to_num(values.to_numpy(float)) if values.dtype.kind in "if"
        else np.unique(values.astype(str), return_inverse=True)[1]
        for _, values in table.items()
    )  # fmt: skip
    return (total > np.median(total)).astype(int)


def _source(flavor: str, model: Any, table: Any, **arguments: Any) -> FittedSource:
    model.fit(table, _classes(table))
    pickled = _PICKLE if flavor == "sklearn" else {}
    return FittedSource(
        flavor, model, table, table[:_EXAMPLE], {**pickled, **arguments}, flavor == "sklearn"
    )


def _pipeline(handle_unknown: str, *, fill_texts: bool = False) -> FittedSource:
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = Pipeline([("fill", SimpleImputer()), ("scale", StandardScaler())])
    words: Any = OneHotEncoder(handle_unknown=handle_unknown)
    if fill_texts:
        fill = SimpleImputer(strategy="constant", fill_value="Bern", missing_values="")
        words = Pipeline([("fill", fill), ("encode", words)])
    encode = ColumnTransformer(
        [
            ("numbers", numbers, ["age"]),
            ("rooms", OneHotEncoder(handle_unknown=handle_unknown), ["rooms"]),
            ("words", words, ["city"]),
        ]
    )  # it drops the last column
    return _source("sklearn", Pipeline([("encode", encode), ("last", LogisticRegression())]),
                   _mixed())  # fmt: skip


def pipeline() -> FittedSource:
    """Return a pipeline whose encoders ignore unknown categories; one column is not used."""
    return _pipeline("ignore")


def strict_pipeline() -> FittedSource:
    """Return a pipeline whose encoders refuse unknown categories."""
    return _pipeline("error")


def filled_pipeline() -> FittedSource:
    """Return a pipeline that fills missing texts, and refuses unknown ones."""
    return _pipeline("error", fill_texts=True)


def histogram() -> FittedSource:
    """Return histogram gradient boosting on numbers with missing values."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    return _source("sklearn", HistGradientBoostingClassifier(max_iter=5), _numbers(missing=True),
                   pyfunc_predict_fn="predict_proba")  # fmt: skip


def histogram_categories() -> FittedSource:
    """Return histogram gradient boosting with columns of pandas' categorical dtype."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    table = _mixed().astype({"city": "category", "kind": "category"})
    made = HistGradientBoostingClassifier(max_iter=5, categorical_features="from_dtype")
    return _source("sklearn", made, table, pyfunc_predict_fn="predict_proba")


def xgboost() -> FittedSource:
    """Return XGBoost on numbers with missing values."""
    from xgboost import XGBClassifier

    return _source("xgboost", XGBClassifier(n_estimators=5), _numbers(missing=True))


def lightgbm() -> FittedSource:
    """Return LightGBM on numbers with missing values."""
    from lightgbm import LGBMRegressor

    return _source("lightgbm", LGBMRegressor(n_estimators=5, verbose=-1), _numbers(missing=True))


def lightgbm_categories() -> FittedSource:
    """Return LightGBM with columns of pandas' categorical dtype."""
    from lightgbm import LGBMClassifier

    table = _mixed().astype({"city": "category", "kind": "category"})
    return _source("lightgbm", LGBMClassifier(n_estimators=5, verbose=-1), table)


def lightgbm_codes() -> FittedSource:
    """Return LightGBM with whole numbers that are categories."""
    from lightgbm import LGBMRegressor

    table = _numbers()
    made = LGBMRegressor(n_estimators=5, verbose=-1, min_data_per_group=1, cat_smooth=0)
    made.fit(table, table["a"] + table["count"] % 3, categorical_feature=["count"])
    return FittedSource("lightgbm", made, table, table[:_EXAMPLE])


def logistic_regression() -> FittedSource:
    """Return a logistic regression."""
    from sklearn.linear_model import LogisticRegression

    return _source("sklearn", LogisticRegression(), _numbers(), pyfunc_predict_fn="predict_proba")


def random_forest() -> FittedSource:
    """Return a random forest."""
    from sklearn.ensemble import RandomForestClassifier

    made = RandomForestClassifier(8, random_state=0)
    return _source("sklearn", made, _numbers(), pyfunc_predict_fn="predict_proba")


def isolation_forest() -> FittedSource:
    """Return an isolation forest."""
    from sklearn.ensemble import IsolationForest

    return _source("sklearn", IsolationForest(n_estimators=8, random_state=0), _numbers())


def nearest_neighbours() -> FittedSource:
    """Return a classifier by nearest neighbours."""
    from sklearn.neighbors import KNeighborsClassifier

    return _source("sklearn", KNeighborsClassifier(), _numbers())


SOURCES: dict[str, Callable[[], FittedSource]] = {
    make.__name__: make
    for make in (
        pipeline, strict_pipeline, filled_pipeline, histogram, histogram_categories, xgboost,
        lightgbm, lightgbm_categories, lightgbm_codes, logistic_regression, random_forest,
        isolation_forest, nearest_neighbours,
    )
}  # fmt: skip
"""The models by name, in the order of the table."""
