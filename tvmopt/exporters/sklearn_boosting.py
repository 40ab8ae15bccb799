"""Converters for skl2onnx of gradient boosting and histogram gradient boosting."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmopt.errors import ModelError
from tvmopt.exporters.category_columns import CategoryColumns
from tvmopt.exporters.category_splits import THRESHOLD, features_of
from tvmopt.exporters.sklearn_tree_nodes import TreeNodes, tree_of
from tvmopt.exporters.tree_table import Tree


def convert_boosting_classifier(scope: Any, operator: Any, container: Any) -> None:
    """Add the trees of all classes; then softmax, or the sigmoid of two classes."""
    nodes = TreeNodes(scope, operator, container)
    raw, targets = _boosted_values(nodes, operator)
    if operator.raw_operator.loss == "exponential":
        raw = nodes.add("Add", [raw, raw])
    nodes.write_shares(raw, targets)


def convert_boosting_regressor(scope: Any, operator: Any, container: Any) -> None:
    """Add the trees."""
    nodes = TreeNodes(scope, operator, container)
    nodes.write_fractions(operator, _boosted_values(nodes, operator)[0])


def convert_histogram_classifier(scope: Any, operator: Any, container: Any) -> None:
    """Add the trees of all classes; then softmax, or the sigmoid of two classes."""
    nodes = TreeNodes(scope, operator, container)
    raw, targets = _histogram_values(nodes, scope, operator, container)
    if len(operator.raw_operator.classes_) != max(2, targets):
        raise ModelError("histogram boosting must have as many classes as scores to be exported")
    nodes.write_shares(raw, targets)


def convert_histogram_regressor(scope: Any, operator: Any, container: Any) -> None:
    """Add the trees, and apply the inverse link of the loss."""
    nodes = TreeNodes(scope, operator, container)
    raw, _ = _histogram_values(nodes, scope, operator, container)
    link = type(operator.raw_operator._loss.link).__name__
    if link not in ("IdentityLink", "LogLink"):
        raise ModelError(
            f"the link of the loss must be identity or log, but is {link}"
            "; export the model to ONNX yourself, and give that file as model"
        )
    inverse = "Exp" if link == "LogLink" else "Identity"
    nodes.add(inverse, [raw], operator.outputs[0].full_name)


def _boosted_values(nodes: TreeNodes, operator: Any) -> tuple[str, int]:
    """Add the trees of gradient boosting to its start; return their output and the targets."""
    model = operator.raw_operator
    if type(model.init_).__name__ not in ("DummyClassifier", "DummyRegressor", "str"):
        raise ModelError(
            "gradient boosting must start with init=None or 'zero' to be exported, but starts with "
            f"{type(model.init_).__name__}"
            "; train with init='zero'"
        )
    start = np.zeros((1, model.n_features_in_))
    first = np.asarray(model._raw_predict_init(start), np.float32).reshape(1, -1)
    trees = [
        tree_of(estimator, estimator.tree_.value[:, 0, :] * model.learning_rate, target)
        for iteration in model.estimators_
        for target, estimator in enumerate(iteration)
    ]
    targets = first.shape[1]
    return nodes.add("Add", [nodes.ensemble(trees, targets), nodes.constant(first)]), targets


def _histogram_values(
    nodes: TreeNodes, scope: Any, operator: Any, container: Any
) -> tuple[str, int]:
    """Add the trees to the baseline; return their output (float32), and the number of targets."""
    model = operator.raw_operator
    features = features_of(model)
    trees: list[Tree] = []
    for iteration in model._predictors:
        for target, predictor in enumerate(iteration):
            table = predictor.nodes
            trees.append(
                Tree(
                    features.nodes[len(trees)],
                    np.where(table["is_categorical"], THRESHOLD, table["num_threshold"]),
                    table["left"],
                    table["right"],
                    table["missing_go_to_left"],
                    table["is_leaf"],
                    table["value"][:, None],
                    target,
                )
            )
    targets = int(model.n_trees_per_iteration_)
    kinds = {type(one.type).__name__ for one in operator.inputs}
    dtype = "float64" if "DoubleTensorType" in kinds else "float32"
    source = ""
    if features.tables or len(operator.inputs) > 1:
        source = CategoryColumns(scope, operator, container, dtype).features(features)
    elif kinds <= {"DoubleTensorType", "FloatTensorType"}:
        source = operator.inputs[0].full_name
    total = nodes.ensemble(trees, targets, dtype, source)
    baseline = np.asarray(model._baseline_prediction, np.float32).reshape(1, -1)
    return nodes.add("Add", [total, nodes.constant(baseline)]), targets
