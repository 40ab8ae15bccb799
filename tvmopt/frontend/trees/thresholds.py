"""Round the thresholds of ensembles, so that their nodes fit half the bytes.

The rounded model is an ONNX model like any other: what is compiled must compute the same as it
does, and its accuracy against the owner's model decides whether it may be promoted.
:mod:`tvmopt.kernels.trees.packed` tells what the kernel makes of such thresholds.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tvmopt.choices import EXACT_THRESHOLDS, INT8_THRESHOLDS
from tvmopt.frontend.categories.attributes import attributes_of
from tvmopt.frontend.trees.attributes import MODES, array, modes
from tvmopt.kernels.trees.ensemble import EQ, GT, GTE, LEQ, LT, NEQ
from tvmopt.kernels.trees.form import MOST_CACHED_NODES
from tvmopt.kernels.trees.packed import BIN_BITS

_BY_NODES = ("TreeEnsembleRegressor", "TreeEnsembleClassifier")
#: Operators that are ensembles of trees.
TREE_OPERATORS = (*_BY_NODES, "TreeEnsemble")
# Comparisons that become <= and > of the float before their threshold.
_ORDERED = {LEQ: LEQ, LT: LEQ, GTE: GT, GT: GT}
# Most thresholds of a column whose bins fit 8 bits.
_MOST = (1 << BIN_BITS) - 1


def has_trees(model: onnx.ModelProto) -> bool:
    """Return whether a model has an ensemble of trees."""
    return any(node.op_type in TREE_OPERATORS for node in model.graph.node)


def has_large_trees(model: onnx.ModelProto) -> bool:
    """Return whether an ensemble is so large that short keys of thresholds may pay."""
    nodes = [node for node in model.graph.node if node.op_type in TREE_OPERATORS]
    return any(_count(node) > MOST_CACHED_NODES for node in nodes)


def _count(node: onnx.NodeProto) -> int:
    """Return the nodes of an ensemble, with its leaves."""
    lists = [a for a in node.attribute if a.name in ("nodes_featureids", "leaf_targetids")]
    return sum(len(helper.get_attribute_value(one)) for one in lists)


def round_thresholds(model: onnx.ModelProto, thresholds: str) -> onnx.ModelProto:
    """Return the model with rounded thresholds; the same object where none changes.

    Args:
        model: A prepared model; it is not modified.
        thresholds: One of ``choices.THRESHOLDS``. ``float16`` rounds float32 thresholds to the
            nearest float16; ``int8`` merges those of a feature that has more than 255 with their
            neighbours.
    """
    if thresholds == EXACT_THRESHOLDS:
        return model
    rounded = onnx.ModelProto()
    rounded.CopyFrom(model)
    nodes = [node for node in rounded.graph.node if node.op_type in TREE_OPERATORS]
    changes = [_round(node, thresholds) for node in nodes]
    return rounded if any(changes) else model


def _round(node: onnx.NodeProto, thresholds: str) -> bool:
    """Round the thresholds of an ensemble; return whether one changed."""
    attributes = attributes_of(node)
    name = "nodes_values" if node.op_type in _BY_NODES else "nodes_splits"
    tensor = attributes.get(f"{name}_as_tensor", attributes.get(name))
    is_wide = isinstance(tensor, onnx.TensorProto) and tensor.data_type == onnx.TensorProto.DOUBLE
    values = array(attributes, name, "float64" if is_wide else "float32")
    mode = modes(attributes)
    ordered = np.isin(mode, list(_ORDERED)) & np.isfinite(values)
    strict = ordered & np.isin(mode, [LT, GTE])
    same = np.where(strict, np.nextafter(values, -np.inf), values)
    new = same.copy()
    if thresholds == INT8_THRESHOLDS:
        feature = array(attributes, "nodes_featureids", "int64")
        for one in np.unique(feature[ordered]):
            own = feature == one
            # A test for equality has two thresholds.
            others = np.unique(values[own & np.isin(mode, [EQ, NEQ])])
            new[own & ordered] = _merged(same[own & ordered], _MOST - 2 * len(others))
    elif not is_wide:
        halves = _halves(values, strict)
        fits = ordered & np.isfinite(halves)
        new[fits] = halves[fits]
    if np.array_equal(new, same, equal_nan=True):
        return False
    _write(node, name, new, [_ORDERED.get(m, m) for m in mode.tolist()])
    return True


def _halves(values: np.ndarray, strict: np.ndarray) -> np.ndarray:
    """Return the nearest float16, or the one before a float16 that values must be less than."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    before = strict & (halves == values)
    halves[before] = np.nextafter(halves[before], np.float16(-np.inf))
    return halves


def _merged(values: np.ndarray, most: int) -> np.ndarray:
    """Return the values, of which ``most`` differ: each group of neighbours has their median."""
    distinct, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(distinct) <= most or most < 1:
        return values
    ends = np.cumsum(counts)
    group = ((ends - counts / 2) * most / ends[-1]).astype(int)
    first = np.searchsorted(group, group)  # of each value's group
    last = np.searchsorted(group, group, side="right") - 1
    median = (ends[last] + ends[first] - counts[first]) / 2
    return distinct[np.searchsorted(ends, median)][where]


def _write(node: onnx.NodeProto, name: str, values: np.ndarray, mode: list[int]) -> None:
    """Replace thresholds and comparisons of an ensemble."""
    names = {number: mode_name for mode_name, number in MODES.items()}
    for attribute in node.attribute:
        is_tensor = attribute.type == onnx.AttributeProto.TENSOR
        if attribute.name in (name, f"{name}_as_tensor"):
            if is_tensor:
                attribute.t.CopyFrom(numpy_helper.from_array(values, attribute.t.name))
            else:
                attribute.floats[:] = values.tolist()
        elif attribute.name == "nodes_modes" and is_tensor:
            numbers = np.array(mode, np.uint8)
            attribute.t.CopyFrom(numpy_helper.from_array(numbers, attribute.t.name))
        elif attribute.name == "nodes_modes":
            attribute.strings[:] = [names[number].encode() for number in mode]
