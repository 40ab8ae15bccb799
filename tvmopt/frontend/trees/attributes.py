"""Read the attributes of TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble.

Source: the `ai.onnx.ml operators <https://onnx.ai/onnx/operators/index.html>`_ of ONNX.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tvmopt.kernels.trees.ensemble import EQ, GT, GTE, LEQ, LT, NEQ, Ensemble

Attributes = Mapping[str, Any]

#: Numbers of comparisons by name; a leaf has none.
MODES = {
    "BRANCH_LEQ": LEQ,
    "BRANCH_LT": LT,
    "BRANCH_GTE": GTE,
    "BRANCH_GT": GT,
    "BRANCH_EQ": EQ,
    "BRANCH_NEQ": NEQ,
    "LEAF": -1,
}
_MEMBER = 6  # TreeEnsemble's number of BRANCH_MEMBER


def array(attributes: Attributes, name: str, dtype: str) -> np.ndarray:
    """Return a list or tensor; empty where it is left out. ``name_as_tensor`` takes its place."""
    value = attributes.get(name)
    if value is None:
        value = attributes.get(f"{name}_as_tensor", ())
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    return np.array(value, dtype).reshape(-1)


def modes(attributes: Attributes) -> np.ndarray:
    """Return the number of each node's comparison: names, or numbers as a tensor.

    Raises:
        ValueError: When a name is unknown.
    """
    given = attributes.get("nodes_modes", ())
    if isinstance(given, onnx.TensorProto):
        return array(attributes, "nodes_modes", "int64")
    names = [_text(name) for name in given]
    unknown = sorted(set(names) - set(MODES))
    if unknown:
        raise ValueError(f"nodes_modes must be of {', '.join(MODES)}, but one is {unknown[0]}")
    return np.array([MODES[name] for name in names], int)


def by_node_ids(
    attributes: Attributes, weights: str, dtype: str, features: int, targets: int
) -> Ensemble:
    """Return the trees of TreeEnsembleRegressor or TreeEnsembleClassifier.

    Args:
        attributes: Attributes of the node.
        weights: Prefix of the attributes of leaf weights: ``"target"`` or ``"class"``.
        dtype: dtype to compare and to sum in.
        features: Features of a row.
        targets: Targets or classes.

    Raises:
        ValueError: When attributes contradict each other.
    """
    tree = array(attributes, "nodes_treeids", "int64")
    number = array(attributes, "nodes_nodeids", "int64")
    mode = modes(attributes)
    nodes = {
        name: array(attributes, f"nodes_{name}", kind)
        for name, kind in (
            ("featureids", "int64"),
            ("values", "float64"),
            ("truenodeids", "int64"),
            ("falsenodeids", "int64"),
        )
    }
    _same_length("nodes", tree, number, mode, *nodes.values())
    find = _Numbers(tree, number)
    leaf = mode < 0

    def branch(name: str) -> np.ndarray:
        found = np.zeros(len(leaf), int)
        found[~leaf] = find(tree[~leaf], nodes[name][~leaf])
        return found

    owners = [array(attributes, f"{weights}_{name}", "int64") for name in ("treeids", "nodeids")]
    target = array(attributes, f"{weights}_ids", "int64")
    weight = array(attributes, f"{weights}_weights", "float64")
    _same_length(f"{weights} weights", *owners, target, weight)
    return Ensemble(
        dtype=dtype,
        features=features,
        targets=targets,
        roots=np.flatnonzero(np.diff(tree, prepend=tree[:1] - 1)),
        mode=mode,
        feature=np.where(leaf, 0, nodes["featureids"]),
        threshold=nodes["values"],
        if_true=branch("truenodeids"),
        if_false=branch("falsenodeids"),
        missing_true=_missing(attributes, len(leaf)),
        leaf=leaf,
        weight_node=find(*owners),
        weight_target=target,
        weight=weight,
    )


def by_position(attributes: Attributes, dtype: str, features: int) -> Ensemble:
    """Return the trees of TreeEnsemble, whose branches are positions.

    A membership test becomes a chain of EQ nodes, of which the last one goes to the false branch.

    Raises:
        ValueError: When attributes contradict each other.
    """
    names = ("modes", "featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    mode, feature, *branches = (array(attributes, f"nodes_{name}", "int64") for name in names)
    threshold = array(attributes, "nodes_splits", "float64")
    target = array(attributes, "leaf_targetids", "int64")
    weight = array(attributes, "leaf_weights", "float64")
    _same_length("nodes", mode, feature, threshold, *branches)
    _same_length("leaves", target, weight)
    wrong = mode[(mode < 0) | (mode > _MEMBER)]
    if len(wrong):
        raise ValueError(f"nodes_modes must be in [0, {_MEMBER}], but one is {wrong[0]}")
    inner, leaves = len(mode), len(weight)
    if_true = branches[0] + np.where(branches[2] != 0, inner, 0)
    if_false = branches[1] + np.where(branches[3] != 0, inner, 0)
    limits = [(branches[n], np.where(branches[n + 2] != 0, leaves, inner)) for n in (0, 1)]
    if any(np.any((places < 0) | (places >= limit)) for places, limit in limits):
        raise ValueError("branches must be positions of nodes or leaves, but one is out of range")
    missing = _missing(attributes, inner)
    tests = np.flatnonzero(mode == _MEMBER)
    sets = _members(array(attributes, "membership_values", "float64"), len(tests))
    more: list[_Row] = []
    for node, members in zip(tests, sets, strict=True):
        first, *others = _membership(members, inner + leaves + len(more))
        place = {_HIT: if_true[node], _MISS: if_false[node]}
        rows = [
            (kind, value, place.get(hit, hit), place.get(miss, miss), feature[node], missing[node])
            for kind, value, hit, miss in (first, *others)
        ]
        mode[node], threshold[node], if_true[node], if_false[node] = rows[0][:4]
        more += rows[1:]
    columns = [np.array(values) for values in zip(*more, strict=True)] or [np.zeros(0, int)] * 6
    padding = np.zeros(leaves, int)

    def whole(values: np.ndarray, column: int, leaf: float = 0) -> np.ndarray:
        return np.concatenate([values, padding + leaf, columns[column]])

    return Ensemble(
        dtype=dtype,
        features=features,
        targets=int(attributes.get("n_targets", target.max(initial=0) + 1)),
        roots=array(attributes, "tree_roots", "int64"),
        mode=whole(mode, 0, -1),
        feature=whole(feature, 4),
        threshold=whole(threshold, 1),
        if_true=whole(if_true, 2),
        if_false=whole(if_false, 3),
        missing_true=whole(missing, 5).astype(bool),
        leaf=np.repeat([False, True, False], [inner, leaves, len(more)]),
        weight_node=inner + np.arange(leaves),
        weight_target=target,
        weight=weight,
    )


# Mode, threshold, true branch, false branch, feature, whether NaN goes to the true branch.
_Row = tuple[int, float, int, int, int, bool]
# Branches of a membership test.
_HIT, _MISS = -1, -2


def _membership(members: Sequence[float], behind: int) -> list[tuple[int, float, int, int]]:
    """Return the nodes of a membership test: mode, threshold, true branch, false branch.

    Args:
        members: The set.
        behind: Number of the second node; the first one replaces the test.
    """
    if not len(members):
        return [(EQ, math.nan, _HIT, _MISS)]
    onward = [*range(behind, behind + len(members) - 1), _MISS]
    return [(EQ, value, _HIT, miss) for value, miss in zip(members, onward, strict=True)]


class _Numbers:
    """Finds nodes by the number of their tree and their own number in it."""

    def __init__(self, tree: np.ndarray, number: np.ndarray) -> None:
        if np.any(number < 0) or np.any(tree < 0):
            raise ValueError("node and tree ids must not be negative, but one is")
        self._factor = int(number.max(initial=0)) + 1
        if int(tree.max(initial=0)) * self._factor >= 1 << 62:
            raise ValueError("node and tree ids must be small numbers, but one is not")
        code = tree * self._factor + number
        self._order = np.argsort(code, kind="stable")
        self._sorted = code[self._order]
        if np.any(self._sorted[1:] == self._sorted[:-1]):
            raise ValueError("each node of a tree must have an id of its own, but two share one")

    def __call__(self, tree: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Return the nodes.

        Raises:
            ValueError: When there is no such node.
        """
        valid = (number >= 0) & (number < self._factor) & (tree >= 0)
        code = np.where(valid, tree * self._factor + number, -1)
        at = np.minimum(np.searchsorted(self._sorted, code), len(self._sorted) - 1)
        missing = np.flatnonzero(self._sorted[at] != code) if len(code) else code
        if len(missing):
            which = f"node {number[missing[0]]} of tree {tree[missing[0]]}"
            raise ValueError(f"branches and weights must refer to nodes, but {which} is not there")
        return self._order[at]


def _missing(attributes: Attributes, count: int) -> np.ndarray:
    values = array(attributes, "nodes_missing_value_tracks_true", "int64")
    return np.pad(values[:count] == 1, (0, max(0, count - len(values))))


def _members(values: np.ndarray, count: int) -> list[list[float]]:
    """Return the members of each set; NaN ends a set."""
    ends = np.flatnonzero(np.isnan(values))
    if len(ends) != count:
        raise ValueError(f"membership_values must hold {count} sets, but hold {len(ends)}")
    starts = [0, *(ends[:-1] + 1)] if count else []
    return [values[first:end].tolist() for first, end in zip(starts, ends, strict=True)]


def _same_length(what: str, *arrays: np.ndarray) -> None:
    lengths = sorted({len(each) for each in arrays})
    if len(lengths) != 1:
        raise ValueError(f"attributes of {what} must have one length, but have {lengths}")


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
