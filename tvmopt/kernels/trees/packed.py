"""Nodes in one word of 32 bits, with a short key in place of the key of a float.

::

    word  =  pair << (KEY + COLUMN)  |  column << KEY  |  short key of the threshold
    next  =  2 * pair + (short key of the column > short key of the threshold)

Two short keys decide every comparison as the keys of the floats do:

* **Halves**, 16 bits, where every threshold is a float16: the key of the feature in float16,
  rounded up, as ``x <= t`` is then the same as ``up(x) <= t``.
* **Bins**, 8 bits, where no column has more than 255 thresholds: the bin of the feature among the
  sorted thresholds, which a binary search finds. ``x > threshold[i]`` is ``bin(x) > i``.

Two columns behind the others hold the smallest and the largest short key, so that a leaf in the
left or in the right place of its pair stays where it is. The last 7 bits of a leaf count the leaves
before it among ``BLOCK`` places; with the leaves before those places they are the row of its
weights.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tvmopt.kernels.trees.comparisons import KEY_DTYPES, keys, values_of
from tvmopt.kernels.trees.layout import TreeLayout

#: Places that share an entry of ``leaf_blocks``.
BLOCK = 128
#: Bits of a bin, and of a half.
BIN_BITS, HALF_BITS = 8, 16
_WORD_BITS = 32


@dataclasses.dataclass(frozen=True)
class PackedLayout(TreeLayout):
    """Arrays of an ensemble whose ``nodes`` are single words (places,), uint32.

    ``weights`` has a row for each leaf (leaves, 1) where each tree has one target.

    Attributes:
        key_bits: Bits of a short key: ``BIN_BITS`` or ``HALF_BITS``.
        column_bits: Bits of a column.
        leaf_blocks: Leaves before each ``BLOCK`` places, int32.
        thresholds: Of bins: keys of the thresholds of each column, sorted; each column is filled
            with the largest key to ``2**steps - 1`` of them.
        first_thresholds: Of bins: place of the first threshold of each column, int32.
        steps: Of bins: steps of a binary search in each column, int32.
    """

    key_bits: int
    column_bits: int
    leaf_blocks: np.ndarray
    thresholds: np.ndarray | None = None
    first_thresholds: np.ndarray | None = None
    steps: np.ndarray | None = None

    @property
    def key_dtype(self) -> str:
        """Unsigned dtype of the short keys."""
        return f"uint{self.key_bits}"


def pack(layout: TreeLayout) -> PackedLayout | None:
    """Return the same trees in single words; None where no short key or field fits."""
    fields = _Fields.of(layout)
    column_bits = (fields.columns + 1).bit_length()
    for short_keys in (_halves, _bins):
        found = short_keys(fields)
        if found is not None and fields.pairs <= _most(found.bits + column_bits):
            return _packed(layout, fields, found, column_bits)
    return None


@dataclasses.dataclass(frozen=True)
class _Fields:
    """Fields of nodes of two words.

    Attributes:
        left: Left child of each place.
        column: Column of each place.
        leaf: Whether a place holds a leaf.
        inner: Whether a place holds an inner node.
        key: Word 1 of each place, as wide as the key of a float.
        dtype: dtype of the floats.
        columns: Number of columns.
    """

    left: np.ndarray
    column: np.ndarray
    leaf: np.ndarray
    inner: np.ndarray
    key: np.ndarray
    dtype: str
    columns: int

    @classmethod
    def of(cls, layout: TreeLayout) -> _Fields:
        shift = layout.nodes.dtype.type(layout.shift)
        low = (layout.nodes.dtype.type(1) << shift) - 1
        column = (layout.nodes[:, 0] & low).astype(np.int64)
        leaf = column == len(layout.columns)
        inner = ~leaf
        inner[layout.starts + 1] = False  # the place beside a root is unused
        key = layout.nodes[:, 1].astype(KEY_DTYPES[layout.dtype])
        left = (layout.nodes[:, 0] >> shift).astype(np.int64)
        return cls(left, column, leaf, inner, key, layout.dtype, len(layout.columns))

    @property
    def pairs(self) -> int:
        """Most pairs of a tree."""
        return int(self.left.max()) // 2 + 1


def _packed(layout: TreeLayout, fields: _Fields, found: _Short, column_bits: int) -> PackedLayout:
    """Return the layout with the short keys of its thresholds."""
    leaf, left = fields.leaf, fields.left
    before = np.cumsum(leaf) - leaf
    blocks = before[::BLOCK]
    low = before - np.repeat(blocks, BLOCK)[: len(before)]
    low[fields.inner] = found.keys
    column = np.where(leaf, fields.columns + left % 2, fields.column)
    nodes = (left // 2) << (found.bits + column_bits) | column << found.bits | low
    payload = fields.key[leaf]
    if layout.weights is None:
        weights = payload.view(layout.dtype).reshape(-1, 1)
    else:
        weights = layout.weights[payload.astype(np.int64)]
    same = {field.name: getattr(layout, field.name) for field in dataclasses.fields(layout)}
    return PackedLayout(
        **same | {"nodes": nodes.astype(np.uint32), "weights": weights},
        key_bits=found.bits,
        column_bits=column_bits,
        leaf_blocks=blocks.astype(np.int32),
        **found.arrays,
    )


def _most(bits: int) -> int:
    """Return the pairs that fit what ``bits`` leave of a word."""
    return 1 << max(0, _WORD_BITS - bits)


@dataclasses.dataclass(frozen=True)
class _Short:
    """Short keys of the thresholds, and the arrays that find the keys of a feature."""

    bits: int
    keys: np.ndarray
    arrays: dict[str, Any]


def _halves(fields: _Fields) -> _Short | None:
    """Return the keys in float16; None where a threshold is no float16."""
    own, dtype = fields.key[fields.inner], fields.dtype
    if dtype != "float32":
        return None
    values = values_of(own, dtype)
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.array_equal(halves.astype(dtype), values):
        return None
    return _Short(HALF_BITS, keys(halves).astype(np.int64), {})


def _bins(fields: _Fields) -> _Short | None:
    """Return the bin of each threshold; None where a column has too many."""
    own, column = fields.key[fields.inner], fields.column[fields.inner]
    order = np.lexsort((own, column))
    by_column, thresholds = column[order], own[order]
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(by_column) != 0) | (thresholds[1:] != thresholds[:-1])
    counts = np.bincount(by_column[new], minlength=fields.columns)
    if counts.max(initial=0) >= 1 << BIN_BITS:
        return None
    before = np.cumsum(counts) - counts
    bins = np.zeros(len(order), np.int64)
    bins[order] = np.cumsum(new) - 1 - before[by_column]
    steps = np.array([int(count).bit_length() for count in counts], np.int32)
    sizes = (1 << steps.astype(np.int64)) - 1
    first = np.cumsum(sizes) - sizes
    filled = np.full(max(1, int(sizes.sum())), np.iinfo(own.dtype).max, own.dtype)
    filled[np.repeat(first - before, counts) + np.arange(counts.sum())] = thresholds[new]
    arrays = {"thresholds": filled, "first_thresholds": first.astype(np.int32), "steps": steps}
    return _Short(BIN_BITS, bins, arrays)
