"""LightGBM models to ONNX: trees with exact float64 thresholds; categorical splits by onnxmltools.

onnxmltools rounds thresholds to float32. LightGBM compares in float64, so models whose splits are
all numeric are written here instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.errors import ConfigError, ModelError, in_one_line
from tvmopt.exporters.boosted import classifier, matrix_columns, regressor
from tvmopt.exporters.exported import ROWS, Exported
from tvmopt.exporters.packages import require_packages
from tvmopt.exporters.saved_object import load_object
from tvmopt.exporters.source import SourceModel
from tvmopt.exporters.tree_table import Tree, ensemble_attributes

_OPSET, _ML_OPSET, _IR = 15, 3, 8
_CLASSES = ("Booster", "LGBMClassifier", "LGBMRegressor", "LGBMRanker")
_CLASSIFIES = ("binary", "multiclass", "multiclassova")
# Operators that turn the sum of the leaves into the prediction.
_LINKS = {
    **dict.fromkeys(("regression", "regression_l1", "huber", "fair", "quantile", "mape",
                     "lambdarank", "rank_xendcg"), "Identity"),
    **dict.fromkeys(("poisson", "gamma", "tweedie"), "Exp"),
    "cross_entropy": "Sigmoid",
    "cross_entropy_lambda": "Softplus",
}  # fmt: skip


def export_lightgbm(source: SourceModel, folder: Path, dtype: str) -> Exported:
    """Export a model of LightGBM.

    Args:
        source: Its description.
        folder: The saved model.
        dtype: dtype of the ONNX input: ``"float32"`` or ``"float64"``.

    Raises:
        ConfigError: When its file is a pickle that is not trusted, or its class is none that is
            known.
        ModelError: When it cannot be read or converted.
        EnvironmentSetupError: Without lightgbm or onnxmltools.
    """
    require_packages(("lightgbm", "onnxmltools"), "LightGBM", "lightgbm 'tvmopt[sklearn]'")
    import lightgbm

    kind = source.model_class.rpartition(".")[2] or "Booster"
    if kind not in _CLASSES:
        raise ConfigError(f"model_class must be one of {', '.join(_CLASSES)}, but is {kind!r}")
    if kind == "Booster":
        try:
            model = lightgbm.Booster(model_file=str(source.path(folder)))
        except lightgbm.basic.LightGBMError as error:
            raise ModelError(
                f"model {source.uri!r} must be a LightGBM text model, but: {in_one_line(error)}"
                "; write it with Booster.save_model"
            ) from error
    else:
        model = load_object(source, folder)
    booster = model if kind == "Booster" else model.booster_
    columns, name, width = matrix_columns(source)
    dtype = "float64" if source.is_wide else dtype
    graph = lightgbm_graph(booster, name, width, dtype)
    dumped = booster.dump_model()
    named = _objective(dumped)[0]
    if named in _CLASSIFIES:
        count = max(2, int(dumped["num_class"]))
        own = getattr(model, "classes_", np.arange(count))
        classes = tuple(value.item() if isinstance(value, np.generic) else value for value in own)
        shares = None if kind == "Booster" else model.predict_proba
        return classifier(graph, columns, classes, model.predict, shares)
    return regressor(graph, columns, model.predict)


def lightgbm_graph(booster: Any, name: str, width: int, dtype: str) -> onnx.ModelProto:
    """Return the graph of a booster: outputs label and probabilities, or values.

    Args:
        booster: The booster.
        name: Name of the input, of shape (rows, width).
        width: Number of its columns.
        dtype: Its dtype.

    Raises:
        ModelError: When the booster has an objective that is not known, or leaves that are no
            constants.
    """
    dumped = booster.dump_model()
    objective = _objective(dumped)
    trees = _trees(dumped)
    if trees is None:
        return _by_onnxmltools(booster, name, width)
    return _graph(trees, dumped, objective, name, width, dtype)


def _objective(dumped: dict[str, Any]) -> list[str]:
    """Return name and options of the objective."""
    found = str(dumped.get("objective", "")).split() or ["none"]
    if found[0] not in (*_CLASSIFIES, *_LINKS):
        raise ModelError(
            "the objective of a LightGBM model must be one of "
            f"{', '.join((*_CLASSIFIES, *_LINKS))} to be exported, but is {found[0]!r}"
            "; export the model to ONNX yourself, and give that file as model"
        )
    return found


def _trees(dumped: dict[str, Any]) -> list[Tree] | None:
    """Return the trees; None where a split is categorical, or 0 is a missing value."""
    per_row = int(dumped["num_tree_per_iteration"])
    found = []
    for number, one in enumerate(dumped["tree_info"]):
        tree = _tree(one["tree_structure"], number % per_row)
        if tree is None:
            return None
        found.append(tree)
    return found


def _tree(root: dict[str, Any], target: int) -> Tree | None:
    rows: list[tuple[int, float, int, int, bool, bool, float]] = []
    pending = [(root, -1, True)]
    while pending:
        node, parent, is_left = pending.pop()
        place = len(rows)
        if "leaf_coeff" in node:
            raise ModelError(
                "leaves must hold constants to be exported, but linear_tree is on"
                "; train with linear_tree=false"
            )
        if "split_feature" not in node:
            rows.append((0, 0.0, 0, 0, False, True, float(node["leaf_value"])))
        else:
            missing = node["missing_type"]
            if node["decision_type"] != "<=" or missing not in ("None", "NaN"):
                return None
            threshold = float(node["threshold"])
            # Without missing values in training, LightGBM takes NaN for 0.
            goes_left = bool(node["default_left"]) if missing == "NaN" else threshold >= 0.0
            rows.append((int(node["split_feature"]), threshold, 0, 0, goes_left, False, 0.0))
            pending.append((node["right_child"], place, False))
            pending.append((node["left_child"], place, True))
        if parent >= 0:
            own = rows[parent]
            rows[parent] = (
                (*own[:2], place, *own[3:]) if is_left else (*own[:3], place, *own[4:])
            )  # fmt: skip
    feature, threshold_, left, right, missing_left, is_leaf, value = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    return Tree(
        feature,
        threshold_,
        left,
        right,
        missing_left,
        is_leaf,
        value[:, None].astype(float),
        target,
    )


def _graph(
    trees: list[Tree],
    dumped: dict[str, Any],
    objective: list[str],
    name: str,
    width: int,
    dtype: str,
) -> onnx.ModelProto:
    """Return a graph of trees: outputs label and probabilities, or values."""
    targets = int(dumped["num_tree_per_iteration"])
    nodes = [
        helper.make_node(
            "TreeEnsembleRegressor", [name], ["raw"], "trees", domain="ai.onnx.ml",
            **ensemble_attributes(trees, targets, dtype),
        )
    ]  # fmt: skip
    initializers = []
    if dumped.get("average_output"):  # a random forest
        count = np.float32(len(trees) // targets)
        initializers.append(numpy_helper.from_array(np.array(count), "iterations"))
        nodes[0].output[0] = "sum"
        nodes.append(helper.make_node("Div", ["sum", "iterations"], ["raw"], "raw"))
    outputs: list[tuple[str, int, list[str | int | None]]] = [
        ("value", TensorProto.FLOAT, [ROWS, targets])
    ]
    if objective[0] in _LINKS:
        nodes.append(helper.make_node(_LINKS[objective[0]], ["raw"], ["linked"], "linked"))
        if "sqrt" in objective[1:]:  # fitted to roots with their sign
            nodes.append(helper.make_node("Abs", ["linked"], ["size"], "size"))
            nodes.append(helper.make_node("Mul", ["linked", "size"], ["value"], "value"))
        else:
            nodes.append(helper.make_node("Identity", ["linked"], ["value"], "value"))
    else:
        if objective[0] == "multiclass":
            nodes.append(helper.make_node("Softmax", ["raw"], ["shares"], "shares", axis=1))
        else:
            given = [part.partition(":")[2] for part in objective if part.startswith("sigmoid:")]
            slope = np.float32(given[0] if given else 1.0)
            initializers.append(numpy_helper.from_array(np.array(slope), "slope"))
            initializers.append(numpy_helper.from_array(np.array(-slope), "negative slope"))
        if objective[0] == "multiclassova":
            nodes.append(helper.make_node("Mul", ["raw", "slope"], ["scaled"], "scaled"))
            nodes.append(helper.make_node("Sigmoid", ["scaled"], ["shares"], "shares"))
        elif objective[0] == "binary":
            for sign, name_ in (("negative slope", "first"), ("slope", "second")):
                nodes.append(
                    helper.make_node("Mul", ["raw", sign], [f"{name_}/raw"], f"{name_}/raw")
                )
                nodes.append(helper.make_node("Sigmoid", [f"{name_}/raw"], [name_], name_))
            nodes.append(
                helper.make_node("Concat", ["first", "second"], ["shares"], "shares", axis=1)
            )
        nodes.append(helper.make_node("ArgMax", ["shares"], ["class"], "class", axis=1, keepdims=0))
        outputs = [
            ("class", TensorProto.INT64, [ROWS]),
            ("shares", TensorProto.FLOAT, [ROWS, max(2, targets)]),
        ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, kind, [ROWS, width])],
        [helper.make_tensor_value_info(*output) for output in outputs],
        initializers,
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR)


def _by_onnxmltools(booster: Any, name: str, width: int) -> onnx.ModelProto:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    try:
        return onnxmltools.convert_lightgbm(
            booster,
            initial_types=[(name, FloatTensorType([None, width]))],
            zipmap=False,
            target_opset=_OPSET,
        )
    except Exception as error:  # the converter raises whatever its parts raise
        raise ModelError(
            "onnxmltools must convert the LightGBM model, but says: "
            f"{type(error).__name__}: {in_one_line(error)}"
            "; export the model to ONNX yourself, and give that file as model"
        ) from error
