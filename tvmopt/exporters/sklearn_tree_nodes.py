"""Nodes that the converters of scikit-learn's ensembles have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmopt.errors import ModelError
from tvmopt.exporters.sklearn_nodes import Nodes
from tvmopt.exporters.tree_table import Tree, ensemble_attributes

_ML_DOMAIN, _ML_OPSET = "ai.onnx.ml", 3


def tree_of(estimator: Any, values: np.ndarray, target: int = 0) -> Tree:
    """Return the nodes of a decision tree of scikit-learn with the values of its leaves."""
    tree = estimator.tree_
    return Tree(
        tree.feature,
        tree.threshold,
        tree.children_left,
        tree.children_right,
        np.asarray(tree.missing_go_to_left),
        tree.children_left < 0,
        values,
        target,
    )


class TreeNodes(Nodes):
    """The graph of a converter of an ensemble.

    Args:
        scope: skl2onnx's scope.
        operator: The model and its variables.
        container: skl2onnx's container of nodes.
    """

    def __init__(self, scope: Any, operator: Any, container: Any) -> None:
        super().__init__(scope, container)
        self._operator = operator

    def ensemble(
        self, trees: Sequence[Tree], targets: int, dtype: str = "float32", source: str = ""
    ) -> str:
        """Add the trees up; return the name of their sums (rows, targets).

        Args:
            trees: The trees.
            targets: Values of a row.
            dtype: dtype of the features.
            source: The features; empty for the input, rounded to float32 as scikit-learn does.
        """
        return self.add(
            "TreeEnsembleRegressor",
            [source or self.joined(self._operator, np.float32)],
            domain=_ML_DOMAIN,
            version=_ML_OPSET,
            **ensemble_attributes(list(trees), targets, dtype),
        )

    def write_classes(self, shares: str) -> None:
        """Write probabilities, and the first class with the largest one as label."""
        classes = np.asarray(self._operator.raw_operator.classes_)
        if classes.dtype.kind not in "iu":
            raise ModelError(f"classes must be whole numbers here, but are {classes.dtype}")
        place = self.add("ArgMax", [shares], axis=1, keepdims=0)
        table = self.constant(classes.astype(np.int64))
        self.add("Gather", [table, place], self._operator.outputs[0].full_name, axis=0)
        self.write_fractions(self._operator, shares, 1)

    def write_shares(self, raw: str, targets: int) -> None:
        """Write label and probabilities: softmax, or the sigmoid of one score for two classes."""
        if targets > 1:
            return self.write_classes(self.add("Softmax", [raw], axis=1))
        both = [self.add("Sigmoid", [self.add("Neg", [raw])]), self.add("Sigmoid", [raw])]
        return self.write_classes(self.add("Concat", both, axis=1))
