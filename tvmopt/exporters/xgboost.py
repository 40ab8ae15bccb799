"""XGBoost models to ONNX; their files need no trust."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx

from tvmopt.errors import ConfigError, ModelError, in_one_line
from tvmopt.exporters.boosted import classifier, matrix_columns, regressor
from tvmopt.exporters.exported import Exported
from tvmopt.exporters.packages import require_packages
from tvmopt.exporters.source import SourceModel
from tvmopt.exporters.xgboost_graph import boosted_graph
from tvmopt.runtime.interface import SourceColumn

_CLASSIFIERS = ("XGBClassifier", "XGBRFClassifier")
_CLASSES = ("Booster", *_CLASSIFIERS, "XGBRegressor", "XGBRFRegressor", "XGBRanker")


def export_xgboost(source: SourceModel, folder: Path, dtype: str) -> Exported:
    """Export a model of XGBoost, which compares in float32.

    Args:
        source: Its description.
        folder: The saved model.
        dtype: Ignored: the inputs are float32.

    Raises:
        ConfigError: When its class is none that is known.
        ModelError: When it cannot be read or converted.
        EnvironmentSetupError: Without xgboost.
    """
    require_packages(("xgboost",), "XGBoost", "xgboost")
    import xgboost

    kind = source.model_class.rpartition(".")[2] or "Booster"
    if kind not in _CLASSES:
        raise ConfigError(f"model_class must be one of {', '.join(_CLASSES)}, but is {kind!r}")
    model = getattr(xgboost, kind)()
    try:
        model.load_model(source.path(folder))
    except xgboost.core.XGBoostError as error:
        raise ModelError(
            f"model {source.uri!r} must be an XGBoost model (json, ubj), but: {in_one_line(error)}"
            "; write it with Booster.save_model"
        ) from error
    columns, name, width = matrix_columns(source)
    if kind == "Booster":
        return _export_booster(model, columns, name, width)
    graph = estimator_graph(model, name, width)
    if kind in _CLASSIFIERS:
        count = max(2, _class_count(model.get_booster()))
        return classifier(graph, columns, tuple(range(count)), model.predict, model.predict_proba)
    return regressor(graph, columns, model.predict)


def estimator_graph(model: Any, name: str, width: int) -> onnx.ModelProto:
    """Return the graph of an estimator, whose input is ``name``, float32 (rows, width)."""
    booster = model.get_booster()
    best = booster.attributes().get("best_iteration")
    if best is not None:  # of an estimator; a booster takes all of its trees
        booster = booster[: int(best) + 1]
    is_classifier = type(model).__name__ in _CLASSIFIERS
    return boosted_graph(booster, name, width, is_classifier=is_classifier)


def _export_booster(
    booster: Any, columns: tuple[SourceColumn, ...], name: str, width: int
) -> Exported:
    import xgboost

    def predict(table: Any) -> Any:
        return booster.predict(xgboost.DMatrix(table))

    has_classes = _objective(booster) in ("binary:logistic", "multi:softprob")
    graph = boosted_graph(booster, name, width, is_classifier=has_classes)
    if has_classes:
        count = max(2, _class_count(booster))
        return classifier(graph, columns, tuple(range(count)), predict, None)
    return regressor(graph, columns, predict)


def _objective(booster: Any) -> str:
    return str(_config(booster)["objective"]["name"])


def _class_count(booster: Any) -> int:
    return int(_config(booster)["learner_model_param"]["num_class"])


def _config(booster: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(booster.save_config())["learner"]
    return found
