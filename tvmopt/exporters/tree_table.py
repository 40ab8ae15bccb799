"""Decision trees as the attributes of ONNX's TreeEnsembleRegressor, with exact thresholds."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from onnx import helper


@dataclasses.dataclass(frozen=True)
class Tree:
    """A binary decision tree; a row goes left if its feature is at most the threshold.

    Attributes:
        feature: Feature of each node, shape (nodes,).
        threshold: Threshold of each node, float64.
        left: Place of the left child.
        right: Place of the right child.
        missing_left: Whether NaN goes left.
        is_leaf: Whether a node is a leaf.
        values: Values of each node, shape (nodes, targets); only leaves' values count.
        target: Target of the first column of ``values``.
    """

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    missing_left: np.ndarray
    is_leaf: np.ndarray
    values: np.ndarray
    target: int = 0


def ensemble_attributes(trees: list[Tree], targets: int, dtype: str) -> dict[str, Any]:
    """Return the attributes of a TreeEnsembleRegressor that adds the values of all trees.

    Args:
        trees: The trees.
        targets: Number of values of a row.
        dtype: dtype of the inputs. A threshold of float64 is rounded down to float32 for float32
            inputs, which decides every float32 value as the float64 threshold does.
    """
    sizes = [len(tree.feature) for tree in trees]
    numbers = np.repeat(np.arange(len(trees)), sizes)
    nodes = np.concatenate([np.arange(size) for size in sizes])
    leaf = np.concatenate([tree.is_leaf for tree in trees]).astype(bool)

    def joined(name: str) -> np.ndarray:
        values = np.concatenate([np.asarray(getattr(tree, name)) for tree in trees])
        return np.where(leaf, 0, values)

    leaves = [np.flatnonzero(tree.is_leaf) for tree in trees]
    widths = [tree.values.shape[1] for tree in trees]
    weights = np.concatenate(
        [tree.values[at].ravel() for tree, at in zip(trees, leaves, strict=True)]
    )
    ids = [
        np.tile(np.arange(tree.target, tree.target + width), len(at))
        for tree, at, width in zip(trees, leaves, widths, strict=True)
    ]
    return {
        "n_targets": targets,
        "aggregate_function": "SUM",
        "post_transform": "NONE",
        "nodes_treeids": numbers.tolist(),
        "nodes_nodeids": nodes.tolist(),
        "nodes_featureids": joined("feature").astype(np.int64).tolist(),
        "nodes_modes": ["LEAF" if one else "BRANCH_LEQ" for one in leaf],
        "nodes_truenodeids": joined("left").astype(np.int64).tolist(),
        "nodes_falsenodeids": joined("right").astype(np.int64).tolist(),
        "nodes_missing_value_tracks_true": joined("missing_left").astype(np.int64).tolist(),
        "target_treeids": np.concatenate(
            [np.full(len(at) * w, i) for i, (at, w) in enumerate(zip(leaves, widths, strict=True))]
        ).tolist(),
        "target_nodeids": np.concatenate(
            [np.repeat(at, width) for at, width in zip(leaves, widths, strict=True)]
        ).tolist(),
        "target_ids": np.concatenate(ids).tolist(),
        **_numbers("nodes_values", joined("threshold"), dtype, rounded_down=True),
        **_numbers("target_weights", weights, dtype),
    }


def _numbers(
    name: str, values: np.ndarray, dtype: str, *, rounded_down: bool = False
) -> dict[str, Any]:
    """Return an attribute of numbers: a list for float32, a tensor for float64."""
    if dtype == "float64":
        tensor = helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
                                    [len(values)], np.asarray(values, np.float64))  # fmt: skip
        return {f"{name}_as_tensor": tensor}
    return {name: (round_down(values) if rounded_down else values).astype(np.float32).tolist()}


def round_down(values: np.ndarray) -> np.ndarray:
    """Return the largest float32 values that are at most ``values``, of float64."""
    rounded = values.astype(np.float32)
    return np.where(
        rounded.astype(np.float64) > values, np.nextafter(rounded, np.float32(-np.inf)), rounded
    )
