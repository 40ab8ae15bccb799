"""Expressions that read the words of nodes, and keys of features that fit them."""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.trees.comparisons import KEY_DTYPES
from tvmopt.kernels.trees.layout import TreeLayout
from tvmopt.kernels.trees.packed import BLOCK, PackedLayout


class Words:
    """Nodes of two words: left child and column, and the key.

    Args:
        layout: The arrays.
        of: Their buffers by name.
    """

    #: Values of the columns that follow the layout's.
    last_columns: tuple[int, ...] = (0,)

    def __init__(self, layout: TreeLayout, of: dict[str, tirx.Buffer]) -> None:
        self._layout, self._of = layout, of
        #: dtype of the table of keys.
        self.dtype = KEY_DTYPES[layout.dtype]

    def tree(self, tree: Expr) -> tirx.Buffer:
        """Return the nodes from the root of a tree on."""
        nodes = self._of["nodes"]
        first = tirx.address_of(nodes[self._start(tree), 0])
        return build.decl_buffer(nodes.shape, str(nodes.dtype), data=first)

    def next(self, nodes: tirx.Buffer, place: Expr, keys: tirx.Buffer, row: Expr) -> Expr:
        """Return the place that a walk goes to from ``place``, by a row of the table of keys."""
        word, shift, dtype = nodes[place, 0], self._layout.shift, str(nodes.dtype)
        left = to64(word >> tirx.const(shift, dtype))
        column = to64(word & tirx.const((1 << shift) - 1, dtype))
        goes_right = nodes[place, 1].astype(self.dtype) < keys[row, column]
        return left + to64(goes_right)

    def store(
        self, keys: tirx.Buffer, row: Expr, column: Expr, value: Expr, missing_left: bool
    ) -> None:
        """Write the key of a feature to the table of keys."""
        build.buffer_store(keys, key_of(value, missing_left), [row, column])

    def weight(self, tree: Expr, at: Expr) -> Expr:
        """Return the one weight of a leaf."""
        return tirx.reinterpret(self._layout.dtype, self._payload(tree, at).astype(self.dtype))

    def row(self, tree: Expr, at: Expr) -> Expr:
        """Return the row of the weights of a leaf."""
        return to64(self._payload(tree, at))

    def _payload(self, tree: Expr, at: Expr) -> Expr:
        return self._of["nodes"][self._start(tree) + at, 1]

    def _start(self, tree: Expr) -> Expr:
        return to64(self._of["starts"][tree])


class PackedWords(Words):
    """Nodes of one word, whose keys are of float16."""

    def __init__(self, layout: PackedLayout, of: dict[str, tirx.Buffer]) -> None:
        super().__init__(layout, of)
        self._packed = layout
        self.dtype = layout.key_dtype
        self.last_columns = (0, (1 << layout.key_bits) - 1)

    def tree(self, tree: Expr) -> tirx.Buffer:
        """Return the nodes from the root of a tree on."""
        nodes = self._of["nodes"]
        first = tirx.address_of(nodes[self._start(tree)])
        return build.decl_buffer(nodes.shape, str(nodes.dtype), data=first)

    def next(self, nodes: tirx.Buffer, place: Expr, keys: tirx.Buffer, row: Expr) -> Expr:
        """Return the place that a walk goes to from ``place``, by a row of the table of keys."""
        word = nodes[place]
        key_bits, column_bits = self._packed.key_bits, self._packed.column_bits

        def const(value: int) -> Expr:
            return tirx.const(value, "uint32")

        pair = to64(word >> const(key_bits + column_bits))
        column = to64((word >> const(key_bits)) & const((1 << column_bits) - 1))
        goes_right = word.astype(self.dtype) < keys[row, column]
        return pair * tirx.const(2, "int64") + to64(goes_right)

    def store(
        self, keys: tirx.Buffer, row: Expr, column: Expr, value: Expr, missing_left: bool
    ) -> None:
        """Write the key of a feature in float16, rounded up, to the table of keys."""
        half = value.astype("float16")
        below = (half.astype("float32") < value).astype(self.dtype)
        missing = tirx.const(0 if missing_left else (1 << self._packed.key_bits) - 1, self.dtype)
        key = tirx.Select(_is_nan(value), missing, _ordered(half) + below)
        build.buffer_store(keys, key, [row, column])

    def weight(self, tree: Expr, at: Expr) -> Expr:
        """Return the one weight of a leaf."""
        return self._of["weights"][self.row(tree, at), 0]

    def row(self, tree: Expr, at: Expr) -> Expr:
        """Return the row of the weights of a leaf."""
        place = self._start(tree) + at
        before = self._of["leaf_blocks"][place // tirx.const(BLOCK, "int64")]
        low = self._of["nodes"][place] & tirx.const(BLOCK - 1, "uint32")
        return to64(before) + to64(low)


class BinWords(PackedWords):
    """Nodes of one word, whose keys are bins."""

    def store(
        self, keys: tirx.Buffer, row: Expr, column: Expr, value: Expr, missing_left: bool
    ) -> None:
        """Find the bin of a feature by a binary search, and write it to the table."""
        known = build.alloc_buffer((1,), KEY_DTYPES[self._layout.dtype], scope="local")
        at = build.alloc_buffer((1,), "int32", scope="local")
        build.buffer_store(known, key_of(value, missing_left), [0])
        build.buffer_store(at, tirx.const(0, "int32"), [0])
        thresholds = self._of["thresholds"]
        first, steps = self._of["first_thresholds"][column], self._of["steps"][column]
        one = tirx.const(1, "int32")
        with build.serial(steps) as step:
            shift = steps - step - one
            place = first + at[0] + (one << shift) - one
            # Shifted, not selected: LLVM makes branches of selections in loops.
            smaller = (thresholds[to64(place)] < known[0]).astype("int32") << shift
            build.buffer_store(at, at[0] + smaller, [0])
        build.buffer_store(keys, at[0].astype(self.dtype), [row, column])


def words_of(layout: TreeLayout, of: dict[str, tirx.Buffer]) -> Words:
    """Return what reads the nodes of a layout."""
    if not isinstance(layout, PackedLayout):
        return Words(layout, of)
    return (PackedWords if layout.thresholds is None else BinWords)(layout, of)


def key_of(value: Expr, missing_left: bool) -> Expr:
    """Return the key of a feature."""
    dtype = KEY_DTYPES[str(value.ty.dtype)]
    largest = (1 << _width(dtype)) - 1
    missing = tirx.const(0 if missing_left else largest, dtype)
    return tirx.Select(_is_nan(value), missing, _ordered(value))


def _ordered(value: Expr) -> Expr:
    """Return the key of a float that is no NaN; both zeros have one."""
    dtype = KEY_DTYPES[str(value.ty.dtype)]
    sign = tirx.const(1 << (_width(dtype) - 1), dtype)
    bits = tirx.reinterpret(dtype, value)
    key = tirx.Select(bits < sign, bits | sign, ~bits)
    return tirx.Select(_size(value) == tirx.const(0, dtype), sign, key)


def _is_nan(value: Expr) -> Expr:
    """Return whether a float is NaN, from its bits: TVM takes ``x == x`` as true for NaN."""
    dtype = str(value.ty.dtype)
    infinity = int(np.array(np.inf, dtype).view(KEY_DTYPES[dtype]))
    return _size(value) > tirx.const(infinity, KEY_DTYPES[dtype])


def _size(value: Expr) -> Expr:
    """Return the bits of a float without its sign."""
    dtype = KEY_DTYPES[str(value.ty.dtype)]
    bits = tirx.reinterpret(dtype, value)
    return bits & tirx.const((1 << (_width(dtype) - 1)) - 1, dtype)


def _width(dtype: str) -> int:
    """Return the bits of an unsigned dtype."""
    return int(dtype.removeprefix("uint"))


def to64(value: Expr) -> Expr:
    """Return an integer as int64."""
    return value.astype("int64")
