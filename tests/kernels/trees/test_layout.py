"""Node arrays against a walk through the trees as ONNX defines it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.random_trees import GRID, inputs
from tvmopt.kernels.trees.comparisons import keys
from tvmopt.kernels.trees.ensemble import EQ, GT, GTE, LEQ, LT, NEQ, Ensemble
from tvmopt.kernels.trees.layout import lay_out

_HOLDS = {
    LEQ: np.less_equal, LT: np.less, GTE: np.greater_equal, GT: np.greater, EQ: np.equal,
    NEQ: np.not_equal,
}  # fmt: skip


def _random(rng, dtype, features, trees, depth):
    """Return trees in any order of nodes, with one weight a leaf."""
    rows, roots, owners = [], [], []

    def grow(level):
        at = len(rows)
        rows.append(None)
        if level == depth or rng.random() < 0.15:
            rows[at] = (-1, 0, 0.0, 0, 0, False, True)
            owners.append(at)
            return at
        mode, feature = int(rng.integers(6)), int(rng.integers(features))
        threshold = float(rng.choice([*GRID, np.nan, 1e300, 0.1 + 1e-12]))
        missing = bool(rng.random() < 0.5)
        rows[at] = (mode, feature, threshold, grow(level + 1), grow(level + 1), missing, False)
        return at

    for _ in range(trees):
        roots.append(grow(0))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    targets = rng.integers(2, size=len(owners))
    weights = rng.normal(size=len(owners)).astype(dtype).astype(float)
    return Ensemble(
        dtype, features, 2, np.array(roots), *columns, np.array(owners), targets, weights
    )


def _expected(e, x):
    weight = dict(zip(e.weight_node, zip(e.weight_target, e.weight, strict=True), strict=True))
    out = np.zeros((len(x), e.targets))
    for row, values in enumerate(x):
        for root in e.roots:
            at = root
            while not e.leaf[at]:
                value = np.float64(values[e.feature[at]])
                holds = _HOLDS[int(e.mode[at])](value, e.threshold[at])
                holds |= np.isnan(value) and e.missing_true[at]
                at = e.if_true[at] if holds else e.if_false[at]
            target, value = weight[at]
            out[row, target] += value
    return out


def _walk(layout, x):
    """Return the scores as the kernel computes them."""
    kind = np.dtype("uint32" if layout.dtype == "float32" else "uint64")
    table = np.zeros((len(x), len(layout.columns) + 1), kind)
    for column, feature in enumerate(layout.columns):
        values = x[:, feature]
        missing = 0 if layout.missing_left[column] else np.iinfo(kind).max
        known = keys(np.where(np.isnan(values), 0, values).astype(layout.dtype))
        table[:, column] = np.where(np.isnan(values), missing, known)
    out = np.zeros((len(x), layout.targets))
    for row in range(len(x)):
        for tree, start in enumerate(layout.starts):
            at = 0
            for _ in range(layout.depths[tree]):
                word, key = (int(value) for value in layout.nodes[start + at])
                column = word & ((1 << layout.shift) - 1)
                at = (word >> layout.shift) + (int(table[row, column]) > key)
            payload = layout.nodes[start + at, 1]
            if layout.tree_targets is None:
                out[row] += layout.weights[int(payload)]
            else:
                out[row, layout.tree_targets[tree]] += payload.astype(kind).view(layout.dtype)
    return out


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["float32", "float64"]), st.integers(1, 9))
def test_walks_end_at_the_same_leaves(seed, dtype, features) -> None:
    rng = np.random.default_rng(seed)
    ensemble = _random(rng, dtype, features, int(rng.integers(1, 5)), int(rng.integers(0, 5)))
    x = inputs(rng, 12, features, dtype)
    np.testing.assert_allclose(_walk(lay_out(ensemble), x), _expected(ensemble, x), rtol=1e-6)


def test_keys_grow_with_their_floats() -> None:
    values = np.array([-np.inf, -1e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 2.0, np.inf], "float32")
    found = keys(values).astype("int64")
    steps = np.diff(found)
    assert steps[4] == 0  # both zeros
    assert (np.delete(steps, 4) > 0).all()


def test_words_are_narrow_and_pairs_begin_at_even_places() -> None:
    ensemble = _random(np.random.default_rng(1), "float32", 4, 6, 5)
    layout = lay_out(ensemble)
    assert layout.nodes.dtype == np.uint32
    assert (layout.starts % 2 == 0).all()
    inner = (layout.nodes[:, 0] & 0xFFFF) != len(layout.columns)
    root = np.isin(np.arange(len(inner)), layout.starts)
    pair = (layout.nodes[inner & ~root, 0] >> 16) % 2
    assert (pair == 0).all()


@pytest.mark.parametrize("shared", ["root", "leaf"])
def test_trees_must_not_share_nodes(shared) -> None:
    whole = np.array([0, 0])
    mode, leaf = np.array([LEQ, LEQ, -1, -1]), np.array([False, False, True, True])
    roots = whole if shared == "root" else np.array([0, 1])
    ensemble = Ensemble(
        "float32", 1, 1, roots, mode, np.zeros(4, int), np.zeros(4), np.array([2, 2, 0, 0]),
        np.array([3, 3, 0, 0]), np.zeros(4, bool), leaf, np.array([2, 3]), whole, np.ones(2),
    )  # fmt: skip
    message = "a root of its own" if shared == "root" else "must belong to one tree"
    with pytest.raises(ValueError, match=message):
        lay_out(ensemble)
