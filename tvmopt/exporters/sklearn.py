"""scikit-learn models to ONNX, by skl2onnx."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvmopt.errors import ConfigError, ModelError, in_one_line
from tvmopt.exporters.exported import (
    LABEL_OUTPUT,
    PROBABILITIES_OUTPUT,
    SCORES_OUTPUT,
    VALUES_OUTPUT,
    Exported,
)
from tvmopt.exporters.outputs import WantedOutput, add_one_hot, with_outputs
from tvmopt.exporters.packages import require_packages
from tvmopt.exporters.saved_object import load_object
from tvmopt.exporters.sklearn_parts import libraries_of, needs_float64, parts_of, prepared
from tvmopt.exporters.source import SourceModel
from tvmopt.exporters.unknown_categories import accept_unknown
from tvmopt.frontend.library_errors import onnxruntime_errors
from tvmopt.frontend.prepare import session_options
from tvmopt.runtime.interface import LABELS, PROBABILITIES, VALUES, SourceColumn

_OPSETS = {"": 18, "ai.onnx.ml": 3}
_INPUT = "columns"
_METHODS = ("predict", "predict_proba")


def export_sklearn(source: SourceModel, folder: Path, dtype: str) -> Exported:
    """Export a model of scikit-learn.

    Args:
        source: Its description.
        folder: The saved model.
        dtype: dtype of the ONNX inputs for columns of fractions: ``"float32"`` or ``"float64"``;
            empty for float64 where trees follow other steps, and float32 elsewhere.

    Raises:
        ConfigError: When its file is not trusted, or MLflow calls another method than
            ``predict`` and ``predict_proba``.
        ModelError: When skl2onnx cannot convert it.
        EnvironmentSetupError: Without skl2onnx.
    """
    require_packages(("skl2onnx",), "scikit-learn", "'tvmopt[sklearn]'")
    if source.predict_fn not in _METHODS:
        raise ConfigError(
            f"pyfunc_predict_fn of the source must be {' or '.join(_METHODS)}, but is "
            f"{source.predict_fn!r}"
        )
    model = load_object(source, folder)
    return export_estimator(source, model, dtype)


def export_estimator(source: SourceModel, model: Any, dtype: str) -> Exported:
    """Export an estimator that has been read, as :func:`export_sklearn`."""
    from sklearn.base import is_classifier, is_regressor

    if not hasattr(model, "predict"):
        raise ModelError(
            f"the model must have predict, but {type(model).__name__} has none"
            "; log an estimator that has it"
        )
    model = getattr(model, "best_estimator_", model)
    known = _categories(source, model)
    if not dtype:
        dtype = "float64" if source.is_wide and needs_float64(model) else "float32"
    columns, types = _inputs(source, model, dtype)
    has_shares = is_classifier(model) and hasattr(model, "predict_proba")
    classes = None
    if is_classifier(model):
        classes = _classes(model)
    graph = _converted(prepared(model, None if classes is None else len(classes)), types)
    found = [output.name for output in graph.graph.output]
    if is_classifier(model):
        assert classes is not None
        wanted = [WantedOutput(found[0], LABEL_OUTPUT, "int64")]
        if has_shares:
            shares = WantedOutput(found[1], PROBABILITIES_OUTPUT, "float32", len(classes))
        else:
            add_one_hot(graph, found[0], len(classes), "one-hot")
            shares = WantedOutput("one-hot", SCORES_OUTPUT, "float32", len(classes))
        wanted.insert(0, shares)
        with_outputs(graph, wanted)
        asked = source.predict_fn == "predict"
        references = {PROBABILITIES_OUTPUT: model.predict_proba} if has_shares else {}
        return Exported(
            graph,
            columns,
            LABELS if asked else PROBABILITIES,
            LABEL_OUTPUT if asked else PROBABILITIES_OUTPUT,
            classes if asked else None,
            getattr(model, source.predict_fn),
            references,
            known,
        )
    if is_regressor(model):
        width = _targets(graph, 0)
        with_outputs(graph, [WantedOutput(found[0], VALUES_OUTPUT, "float32", width)])
        return Exported(
            graph, columns, VALUES, VALUES_OUTPUT, None, model.predict, categories=known
        )
    wanted = [WantedOutput(found[0], LABEL_OUTPUT, "int64")]
    if len(found) > 1:  # scores of outlier detectors, distances of clusters
        width = _targets(graph, 1)
        wanted.insert(0, WantedOutput(found[1], SCORES_OUTPUT, "float32", width))
    with_outputs(graph, wanted)
    scores = getattr(model, "decision_function", None) if len(wanted) > 1 else None
    references = {}
    if scores is not None:
        references[SCORES_OUTPUT] = lambda table: np.asarray(scores(table)).reshape(-1, 1)
    return Exported(graph, columns, LABELS, LABEL_OUTPUT, None, model.predict, references, known)


def _inputs(
    source: SourceModel, model: Any, dtype: str
) -> tuple[tuple[SourceColumn, ...], list[tuple[str, Any]]]:
    """Return the columns with their ONNX inputs, and the types of these for skl2onnx.

    Numbers are one matrix, unless a part of the model takes columns by name or there are texts:
    then every column is an input.
    """
    from skl2onnx.common import data_types

    fractions = {"float32": data_types.FloatTensorType, "float64": data_types.DoubleTensorType}
    if not source.columns:
        [tensor] = _matrix(source)
        width = tensor.shape[1]
        return (), [(tensor.name, fractions[dtype]([None, width]))]
    if not any(column.is_text for column in source.columns) and not _takes_names(model):
        found = tuple(
            SourceColumn(column.name, _INPUT, place) for place, column in enumerate(source.columns)
        )
        return found, [(_INPUT, fractions[dtype]([None, len(found)]))]
    types = []
    for column in source.columns:
        if column.is_text:
            kind = data_types.StringTensorType
        elif np.dtype(column.dtype).kind in "iu":
            kind = data_types.Int64TensorType
        else:
            kind = fractions[dtype]
        types.append((column.name, kind([None, 1])))
    return tuple(SourceColumn(c.name, c.name, 0, c.is_text) for c in source.columns), types


def _matrix(source: SourceModel) -> Any:
    if len(source.tensors) != 1 or len(source.tensors[0].shape) != 2:
        raise ConfigError(
            f"the signature of model {source.uri!r} must have columns, or one tensor of shape "
            "(-1, columns)"
            "; log the model with such a signature"
        )
    return source.tensors


def _takes_names(model: Any) -> bool:
    """Return whether a ColumnTransformer of the model takes columns by name."""
    return any(
        isinstance(name, str)
        for part in parts_of(model)
        if type(part).__name__ == "ColumnTransformer"
        for _, _, columns in part.transformers_
        for name in (columns if isinstance(columns, list | tuple | np.ndarray) else [columns])
    )


def _categories(source: SourceModel, model: Any) -> dict[str, tuple[str | float, ...]]:
    """Return the categories of each column whose encoder refuses any other."""
    names = [column.name for column in source.columns]
    taken: list[tuple[Any, list[Any]]] = []
    for part in parts_of(model):
        for _, inner, columns in getattr(part, "transformers_", []):
            taken.append((inner, list(columns) if isinstance(columns, list | tuple) else [columns]))
    first = model
    while hasattr(first, "steps"):
        first = first.steps[0][1]
    if hasattr(first, "categories_"):  # an encoder of all columns
        taken.append((first, list(range(len(names)))))
    found: dict[str, tuple[str | float, ...]] = {}
    for inner, columns in taken:
        for part in parts_of(inner):
            values = getattr(part, "categories_", None)
            if getattr(part, "handle_unknown", "") != "error" or values is None:
                continue
            for column, known in zip(columns, values, strict=False):
                name = names[column] if isinstance(column, int) and names else column
                # A second encoder of a column takes what the first one gives.
                found.setdefault(
                    str(name), tuple(_class(value) for value in known if value is not None)
                )
    return found


def _classes(model: Any) -> tuple[str | float | bool | int, ...]:
    found = model.classes_
    if isinstance(found, list) or np.ndim(found) != 1:
        raise ModelError(
            f"a classifier must give one label a row to be exported, but {type(model).__name__} "
            f"gives {len(found)}; log a model for each label"
        )
    return tuple(_class(value) for value in found)


def _class(value: Any) -> str | float | bool | int:
    plain = value.item() if isinstance(value, np.generic) else value
    if not isinstance(plain, str | int | float | bool):
        raise ModelError(f"classes must be numbers or texts, but one is {type(plain).__name__}")
    return plain


def _converted(model: Any, types: list[tuple[str, Any]]) -> onnx.ModelProto:
    from sklearn.base import is_classifier

    from tvmopt.exporters.sklearn_columns import register_columns
    from tvmopt.exporters.sklearn_svm import register_svm
    from tvmopt.exporters.sklearn_trees import register_converters

    register_converters()
    register_columns()
    register_svm()
    libraries = libraries_of(model) & {"xgboost", "lightgbm"}
    if libraries:
        from tvmopt.exporters.sklearn_boosters import register_boosted

        register_boosted(sorted(libraries))
    tries = [{"zipmap": False}, None] if is_classifier(model) else [None]
    for options in tries:
        try:
            return _by_skl2onnx(model, types, options)
        except NameError as error:  # a classifier without probabilities has no such option
            if options is None or "zipmap" not in str(error):
                raise _not_converted(model, error) from error
    raise AssertionError("the last try returns or raises")


def _by_skl2onnx(
    model: Any, types: list[tuple[str, Any]], options: dict[str, bool] | None
) -> onnx.ModelProto:
    from skl2onnx import convert_sklearn

    try:
        return convert_sklearn(
            model, initial_types=types, options=options, target_opset=_OPSETS, name="model"
        )
    except (ModelError, NameError):
        raise
    except Exception as error:  # skl2onnx raises whatever its parts raise
        raise _not_converted(model, error) from error


def _not_converted(model: Any, error: Exception) -> ModelError:
    """Return the error for a model that skl2onnx cannot convert."""
    lacking = re.search(r"(?:calculator|converter) for type '<class '([\w.]+)'>'", str(error))
    if lacking:
        name = lacking.group(1).rpartition(".")[2]
        return ModelError(
            f"skl2onnx must have a converter for every part of the model, but has none for {name}; "
            "use another class in its place, or log the model without it"
        )
    return ModelError(
        f"skl2onnx must convert {type(model).__name__}, but says: "
        f"{type(error).__name__}: {in_one_line(error)}"
        "; export the model to ONNX yourself, and give that file as model"
    )


def _targets(model: onnx.ModelProto, output: int) -> int:
    """Return the number of values of a row in an output; skl2onnx may declare another."""
    import onnxruntime

    untyped = onnx.ModelProto()
    untyped.CopyFrom(model)
    for value in untyped.graph.output:  # skl2onnx may declare another dtype, too
        value.ClearField("type")
    del untyped.graph.value_info[:]
    accept_unknown(untyped, lambda: True)  # zeros may be no category
    try:
        session = onnxruntime.InferenceSession(
            untyped.SerializeToString(), session_options(model), providers=["CPUExecutionProvider"]
        )
        inputs = {}
        for value in model.graph.input:
            dims = value.type.tensor_type.shape.dim
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            inputs[value.name] = np.zeros([2, *(dim.dim_value for dim in dims[1:])], dtype)
        found = session.run([model.graph.output[output].name], inputs)[0]
    except onnxruntime_errors() as error:
        raise ModelError(
            f"ONNX Runtime must run the exported model, but says: {in_one_line(error)}"
            "; report the model as a bug"
        ) from error
    return int(np.asarray(found).size // 2)
