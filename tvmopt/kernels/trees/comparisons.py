"""Rewrite every comparison of an ensemble to ``key(x) <= key``, with unsigned integer keys.

The key of a float grows with the float: its bits with the sign bit flipped, or all bits where it is
negative; both zeros have the key of +0. The rewrite is exact for every float, infinities included::

    x <= t    key <= key(t)             x > t     the same, with exchanged branches
    x <  t    key <= key(t) - 1         x >= t    the same, with exchanged branches
    x == t    key <= key(t), then key <= key(t) - 1 with exchanged branches: two nodes
    x != t    the two nodes of x == t with other branches

A threshold that the dtype of the input cannot represent is rounded down first. NaN has the largest
key, so that it goes right, in the column of its feature. A node that sends NaN left reads another
column of the same feature, where NaN has the smallest key.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tvmopt.kernels.trees.ensemble import EQ, GT, GTE, LT, NEQ, Ensemble

#: Unsigned dtype of the keys of each dtype.
KEY_DTYPES = {"float16": "uint16", "float32": "uint32", "float64": "uint64"}


@dataclasses.dataclass(frozen=True)
class Comparisons:
    """Nodes that go left where the key of a feature is at most ``key``.

    Attributes:
        feature: Feature of each node.
        key: Key of each node.
        left: Next node where the comparison holds.
        right: Next node where it does not.
        missing_left: Whether NaN goes left.
        leaf: Whether the node is a leaf.
    """

    feature: np.ndarray
    key: np.ndarray
    left: np.ndarray
    right: np.ndarray
    missing_left: np.ndarray
    leaf: np.ndarray


def comparisons(ensemble: Ensemble) -> Comparisons:
    """Return the comparisons of an ensemble; nodes that EQ and NEQ add are behind the others."""
    e, mode = ensemble, ensemble.mode
    at_most, below = _keys(e.threshold, e.dtype)
    exchanged = (mode == GT) | (mode == GTE)
    key = np.where((mode == LT) | (mode == GTE), below, at_most)
    # x > NaN never holds: all floats go left, to the false branch.
    never = exchanged & np.isnan(e.threshold)
    key = np.where(never, np.iinfo(key.dtype).max - 1, key).astype(key.dtype)
    left = np.where(exchanged, e.if_false, e.if_true)
    right = np.where(exchanged, e.if_true, e.if_false)
    missing_left = np.where(exchanged, ~e.missing_true, e.missing_true)

    split = np.flatnonzero(((mode == EQ) | (mode == NEQ)) & ~e.leaf)
    equal = mode[split] == EQ
    hit = np.where(equal, e.if_true[split], e.if_false[split])
    miss = np.where(equal, e.if_false[split], e.if_true[split])
    left[split], right[split] = len(mode) + np.arange(len(split)), miss
    missing_left[split] &= equal  # NaN differs from every threshold
    none = np.zeros(len(split), bool)
    return Comparisons(
        feature=np.concatenate([e.feature, e.feature[split]]),
        key=np.concatenate([key, below[split]]),
        left=np.concatenate([left, miss]),
        right=np.concatenate([right, hit]),
        missing_left=np.concatenate([missing_left, none]),
        leaf=np.concatenate([e.leaf, none]),
    )


def keys(values: np.ndarray) -> np.ndarray:
    """Return the keys of floats that are no NaN."""
    unsigned = np.dtype(KEY_DTYPES[str(values.dtype)])
    bits = np.ascontiguousarray(values + values.dtype.type(0)).view(unsigned)
    sign = unsigned.type(1) << unsigned.type(8 * unsigned.itemsize - 1)
    return np.where(bits & sign, ~bits, bits | sign)


def values_of(keys: np.ndarray, dtype: str) -> np.ndarray:
    """Return the floats of keys; NaN for a key that no float has."""
    sign = keys.dtype.type(1) << keys.dtype.type(8 * keys.itemsize - 1)
    return np.where(keys & sign, keys & ~sign, ~keys).view(dtype)


def _keys(threshold: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys of ``x <= threshold`` and of ``x < threshold``; 0 for NaN, as none is."""
    kind = np.dtype(dtype).type
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = threshold.astype(dtype)
    above = rounded > threshold
    rounded = np.where(above, np.nextafter(rounded, kind(-np.inf)), rounded)
    at_most = keys(rounded)
    below = at_most - (rounded == threshold)
    none = np.isnan(threshold)
    at_most, below = (np.where(none, 0, each).astype(at_most.dtype) for each in (at_most, below))
    return at_most, below
