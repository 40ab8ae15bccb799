"""Converters for skl2onnx of forests, single trees and isolation forests."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmopt.errors import ModelError
from tvmopt.exporters.sklearn_tree_nodes import TreeNodes, tree_of
from tvmopt.exporters.tree_table import Tree


def convert_forest(scope: Any, operator: Any, container: Any) -> None:
    """Add the leaves of a forest, divide by the number of trees, take the largest class."""
    model = operator.raw_operator
    if getattr(model, "n_outputs_", 1) != 1:
        raise ModelError(
            "a forest must have one output to be exported, but has several"
            "; train a forest for each output"
        )
    trees = []
    for estimator in model.estimators_:
        values = estimator.tree_.value[:, 0, :]
        trees.append(tree_of(estimator, values / values.sum(axis=1, keepdims=True)))
    nodes = TreeNodes(scope, operator, container)
    nodes.write_classes(_mean(nodes, trees, trees[0].values.shape[1]))


def convert_forest_regressor(scope: Any, operator: Any, container: Any) -> None:
    """Add the leaves of a forest, or of one tree, and divide by the number of trees."""
    model = operator.raw_operator
    trees = [
        tree_of(one, one.tree_.value[:, :, 0]) for one in getattr(model, "estimators_", [model])
    ]
    nodes = TreeNodes(scope, operator, container)
    nodes.write_fractions(operator, _mean(nodes, trees, int(model.n_outputs_)))


def _mean(nodes: TreeNodes, trees: list[Tree], targets: int) -> str:
    return nodes.add(
        "Div", [nodes.ensemble(trees, targets), nodes.constant(np.float32(len(trees)))]
    )


def convert_isolation_forest(scope: Any, operator: Any, container: Any) -> None:
    """Add the depths of all trees; a row is an outlier if 2 to the minus mean depth is large."""
    from sklearn.ensemble._iforest import _average_path_length

    model = operator.raw_operator
    trees = [_isolation_tree(model, number) for number in range(len(model.estimators_))]
    nodes = TreeNodes(scope, operator, container)
    usual = len(trees) * float(_average_path_length(np.array([model._max_samples]))[0])
    factor = nodes.constant(np.float32(-np.log(2.0) / usual if usual else 0.0))
    power = nodes.add("Exp", [nodes.add("Mul", [nodes.ensemble(trees, 1), factor])])
    score = nodes.add("Sub", [nodes.constant(np.float32(-model.offset_)), power])
    label, scores = (output.full_name for output in operator.outputs[:2])
    outlier = nodes.add("Less", [score, nodes.constant(np.float32(0))])
    signs = [nodes.constant(np.int64(sign)) for sign in (-1, 1)]
    sign = nodes.add("Where", [outlier, *signs])
    nodes.add("Reshape", [sign, nodes.constant(np.array([-1], np.int64))], label)
    nodes.add("Identity", [score], scores)


def _isolation_tree(model: Any, number: int) -> Tree:
    """Return a tree whose leaves hold the length of the path to them."""
    tree, features = model.estimators_[number].tree_, model.estimators_features_[number]
    depths = model._decision_path_lengths[number] + model._average_path_length_per_tree[number]
    return Tree(
        np.where(tree.feature < 0, 0, np.asarray(features)[np.maximum(tree.feature, 0)]),
        tree.threshold,
        tree.children_left,
        tree.children_right,
        np.asarray(tree.missing_go_to_left),
        tree.children_left < 0,
        (depths - 1.0)[:, None],
    )
