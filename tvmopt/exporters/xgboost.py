"""XGBoost models to ONNX, by onnxmltools; their files need no trust."""

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

_OPSET = 15
_CLASSES = ("Booster", "XGBClassifier", "XGBRegressor", "XGBRFClassifier", "XGBRFRegressor")


def export_xgboost(source: SourceModel, folder: Path, dtype: str) -> Exported:
    """Export a model of XGBoost, which compares in float32.

    Args:
        source: Its description.
        folder: The saved model.
        dtype: Ignored: the inputs are float32.

    Raises:
        ConfigError: When its class is none that is known.
        ModelError: When it cannot be read or converted.
        EnvironmentSetupError: Without xgboost or onnxmltools.
    """
    require_packages(("xgboost", "onnxmltools"), "XGBoost", "xgboost 'tvmopt[sklearn]'")
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
        ) from error
    columns, name, width = matrix_columns(source)
    booster = model if kind == "Booster" else model.get_booster()
    best = _best_iteration(booster)
    if best is not None:
        booster = booster[: best + 1]
    objective = _objective(booster)
    graph = _converted(booster, name, width)
    if kind == "Booster":

        def predict(table: Any) -> Any:
            return booster.predict(xgboost.DMatrix(table))
    else:
        predict = model.predict
    if objective.startswith(("binary:logistic", "multi:")):
        count = max(2, _class_count(booster))
        if objective == "multi:softmax" and kind == "Booster":
            raise ConfigError(
                "a Booster must have the objective multi:softprob to be compiled, but has "
                "multi:softmax; log the XGBClassifier, or train with multi:softprob"
            )
        shares = None if kind == "Booster" else model.predict_proba
        return classifier(graph, columns, tuple(range(count)), predict, shares)
    return regressor(graph, columns, predict)


def _best_iteration(booster: Any) -> int | None:
    value = booster.attributes().get("best_iteration")
    return None if value is None else int(value)


def _objective(booster: Any) -> str:
    return str(_config(booster)["objective"]["name"])


def _class_count(booster: Any) -> int:
    return int(_config(booster)["learner_model_param"]["num_class"])


def _config(booster: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(booster.save_config())["learner"]
    return found


def _converted(booster: Any, name: str, width: int) -> onnx.ModelProto:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    plain = booster.copy()
    plain.feature_names = None  # the converter knows features by number
    plain.feature_types = None
    try:
        return onnxmltools.convert_xgboost(
            plain, initial_types=[(name, FloatTensorType([None, width]))], target_opset=_OPSET
        )
    except Exception as error:  # the converter raises whatever its parts raise
        raise ModelError(
            "onnxmltools must convert the XGBoost model, but says: "
            f"{type(error).__name__}: {in_one_line(error)}"
        ) from error
