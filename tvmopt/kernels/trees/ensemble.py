"""An ensemble of decision trees as arrays of its nodes."""

from __future__ import annotations

import dataclasses

import numpy as np

#: Comparisons of a node, numbered as in TreeEnsemble of ai.onnx.ml 5; ``MEMBER`` is not here: a
#: membership test is a chain of EQ nodes.
LEQ, LT, GTE, GT, EQ, NEQ = range(6)


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Trees whose nodes are rows of arrays; a node is known by its row.

    Attributes:
        dtype: dtype that features are compared in and weights are summed in: ``"float32"`` or
            ``"float64"``.
        features: Features of a row of the input.
        targets: Targets (or classes).
        roots: Root of each tree.
        mode: Comparison of each node; any value for a leaf.
        feature: Feature that each node compares.
        threshold: Value that it is compared with, float64.
        if_true: Next node where the comparison holds.
        if_false: Next node where it does not.
        missing_true: Whether a NaN makes the comparison hold.
        leaf: Whether the node is a leaf.
        weight_node: Leaf of each weight.
        weight_target: Target that each weight is added to.
        weight: Value of each weight.
    """

    dtype: str
    features: int
    targets: int
    roots: np.ndarray
    mode: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    if_true: np.ndarray
    if_false: np.ndarray
    missing_true: np.ndarray
    leaf: np.ndarray
    weight_node: np.ndarray
    weight_target: np.ndarray
    weight: np.ndarray

    def __post_init__(self) -> None:
        """Check every index.

        Raises:
            ValueError: When an index has no node, feature or target.
        """
        count, inner = len(self.leaf), ~self.leaf
        if not len(self.roots):
            raise ValueError("an ensemble must have a tree, but has none")
        for name, values, limit in (
            ("roots", self.roots, count),
            ("true branches", self.if_true[inner], count),
            ("false branches", self.if_false[inner], count),
            ("features", self.feature[inner], self.features),
            ("leaves of weights", self.weight_node, count),
            ("targets of weights", self.weight_target, self.targets),
        ):
            wrong = values[(values < 0) | (values >= limit)]
            if len(wrong):
                raise ValueError(f"{name} must be in [0, {limit}), but one is {wrong[0]}")
