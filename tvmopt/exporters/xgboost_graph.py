"""ONNX graph of an XGBoost model: its trees in float32, and the function of its objective.

The trees are read from XGBoost's own JSON (its documented model format). A row goes left where its
feature is below a threshold, or missing and the default is left.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmopt.errors import ModelError
from tvmopt.exporters.exported import ROWS
from tvmopt.exporters.tree_table import Tree, ensemble_attributes

_OPSET, _ML_OPSET, _IR = 15, 3, 8
_LOGISTIC = ("binary:logistic", "reg:logistic")
_EXPONENTIAL = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft")
_IDENTITY = ("binary:logitraw", "reg:squarederror", "reg:linear", "reg:squaredlogerror",
             "reg:pseudohubererror", "reg:absoluteerror", "reg:quantileerror")  # fmt: skip


def boosted_graph(booster: Any, name: str, width: int, *, is_classifier: bool) -> onnx.ModelProto:
    """Return the graph of a booster.

    Args:
        booster: The booster.
        name: Name of the input, float32 (rows, width).
        width: Number of its columns.
        is_classifier: Whether outputs are labels (rows,) and probabilities (rows, classes); else
            values (rows, targets).

    Raises:
        ModelError: When the booster has no plain trees, or an objective that is not known.
    """
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    objective = str(learner["objective"]["name"])
    trees, targets = _trees(learner)
    graph = _Graph()
    graph.add(
        "TreeEnsembleRegressor", [name], "sum", domain="ai.onnx.ml",
        **ensemble_attributes(trees, targets, "float32"),
    )  # fmt: skip
    graph.add("Add", ["sum", graph.constant(_margin(learner, objective, targets))], "raw")
    value = _value(graph, objective)
    if objective == "multi:softmax" and not is_classifier:
        graph.add("ArgMax", [value], "place", axis=1, keepdims=1)
        value, targets = graph.add("Cast", ["place"], "number", to=TensorProto.FLOAT), 1
    outputs = [helper.make_tensor_value_info(value, TensorProto.FLOAT, [ROWS, targets])]
    if is_classifier:
        if targets == 1:
            graph.add("Sub", [graph.constant(np.float32(1)), value], "rest")
            value, targets = graph.add("Concat", ["rest", value], "shares", axis=1), 2
        graph.add("ArgMax", [value], "class", axis=1, keepdims=0)
        outputs = [
            helper.make_tensor_value_info("class", TensorProto.INT64, [ROWS]),
            helper.make_tensor_value_info(value, TensorProto.FLOAT, [ROWS, targets]),
        ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, width])]
    made = helper.make_graph(graph.nodes, "model", inputs, outputs, graph.tensors)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
    return helper.make_model(made, opset_imports=opsets, ir_version=_IR)


class _Graph:
    """Nodes and constants; each node has the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def constant(self, value: Any) -> str:
        name = f"constant/{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(value), name))
        return name


def _value(graph: _Graph, objective: str) -> str:
    """Add the function that turns the sum of the leaves into the prediction."""
    if objective in _LOGISTIC:
        return graph.add("Sigmoid", ["raw"], "value")
    if objective in _EXPONENTIAL:
        return graph.add("Exp", ["raw"], "value")
    if objective in ("multi:softprob", "multi:softmax"):
        return graph.add("Softmax", ["raw"], "value", axis=1)
    if objective == "binary:hinge":
        graph.add("Greater", ["raw", graph.constant(np.float32(0))], "positive")
        return graph.add("Cast", ["positive"], "value", to=TensorProto.FLOAT)
    if objective in _IDENTITY or objective.startswith("rank:"):
        return "raw"
    known = ", ".join((*_LOGISTIC, *_EXPONENTIAL, *_IDENTITY, "binary:hinge", "multi:*", "rank:*"))
    raise ModelError(
        f"the objective of an XGBoost model must be one of {known} to be exported, but is "
        f"{objective!r}"
        "; export the model to ONNX yourself, and give that file as model"
    )


def _margin(learner: dict[str, Any], objective: str, targets: int) -> np.ndarray:
    """Return the sum before the first tree, float32 (targets,)."""
    given = json.loads(learner["learner_model_param"]["base_score"])
    score = np.asarray(given, np.float32).reshape(-1)
    links: dict[bool, Callable[[np.ndarray], np.ndarray]] = {
        objective in _LOGISTIC: lambda p: np.log(p) - np.log1p(-p),
        objective in _EXPONENTIAL: np.log,
    }
    margin = links[True](score.astype(np.float64)) if True in links else score
    return np.broadcast_to(margin.astype(np.float32), (targets,)).copy()


def _trees(learner: dict[str, Any]) -> tuple[list[Tree], int]:
    """Return the trees, and the number of values of a row."""
    booster = learner["gradient_booster"]
    kind = booster["name"]
    if kind not in ("gbtree", "dart"):
        raise ModelError(
            f"the booster of an XGBoost model must be gbtree or dart to be exported, but is {kind}"
            "; train with booster=gbtree"
        )
    model = booster["gbtree"]["model"] if kind == "dart" else booster["model"]
    weights = booster.get("weight_drop") or [1.0] * len(model["trees"])
    parameters = learner["learner_model_param"]
    targets = max(1, int(parameters["num_class"]), int(parameters.get("num_target", 1)))
    return [
        _tree(tree, np.float32(weight), int(target))
        for tree, weight, target in zip(model["trees"], weights, model["tree_info"], strict=True)
    ], targets


def _tree(tree: dict[str, Any], weight: np.float32, target: int) -> Tree:
    if int(tree["tree_param"]["size_leaf_vector"]) > 1:
        raise ModelError(
            "a leaf of an XGBoost model must hold one value to be exported, but holds several; "
            "train with multi_strategy='one_output_per_tree'"
        )
    if any(tree["split_type"]):
        raise ModelError(
            "splits of an XGBoost model must be numeric to be exported, but some are categorical; "
            "encode these columns before the model, for example with OneHotEncoder"
        )
    left = np.asarray(tree["left_children"])
    conditions = np.asarray(tree["split_conditions"], np.float32)
    return Tree(
        np.asarray(tree["split_indices"]),
        below(conditions).astype(np.float64),
        left,
        np.asarray(tree["right_children"]),
        np.asarray(tree["default_left"]),
        left < 0,
        (conditions * weight)[:, None].astype(np.float64),
        target,
    )


def below(thresholds: np.ndarray) -> np.ndarray:
    """Return the largest float32 below each threshold, and no subnormal number.

    ``x < threshold`` is ``x <= below(threshold)``, also where a processor takes subnormal numbers
    for 0.
    """
    found = np.nextafter(thresholds, np.float32(-np.inf))
    tiny = np.finfo(np.float32).tiny
    return np.where(np.abs(found) < tiny, np.where(thresholds <= 0, -tiny, 0), found)
