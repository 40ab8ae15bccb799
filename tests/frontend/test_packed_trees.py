"""Ensembles whose nodes are single words, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from tests.frontend.random_trees import inputs, model, old_form
from tests.frontend.test_trees import _same
from tests.kernels.trees.test_layout import _random
from tvmopt.frontend.converters import trees
from tvmopt.kernels.trees.ensemble import Ensemble
from tvmopt.kernels.trees.form import choose_words
from tvmopt.kernels.trees.layout import lay_out
from tvmopt.kernels.trees.packed import BIN_BITS, HALF_BITS, PackedLayout, pack

_LARGE = np.float32([65504, 65520, 1e9, -1e9, 6e-8, 2e-8, -2e-8, 0.1, 0.33325195, np.nan])


def _packed(made, x) -> list[int]:
    """Compare a model, whose ensembles are packed, with ONNX Runtime; return the bits of keys."""
    found: list[PackedLayout] = []

    def choose(layout):
        one = pack(layout)
        assert one is not None
        found.append(one)
        return one

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "choose_words", choose)
        _same(made, x)
    return [one.key_bits for one in found]


def _model(rng, rows, features, targets, *, halves, double=False):
    """Return a model of random trees, and inputs for it."""
    ids = (targets, targets) if rng.random() < 0.5 else [int(rng.integers(targets))]
    modes = ("BRANCH_LEQ", "BRANCH_GT") if halves else ("BRANCH_LT", "BRANCH_LEQ", "BRANCH_EQ")
    attributes = old_form(
        rng, "target", trees=int(rng.integers(1, 20)), depth=int(rng.integers(0, 7)),
        features=features, ids=ids, double=double, modes=modes,
    )  # fmt: skip
    if halves:
        values = np.array(attributes["nodes_values"], np.float16)
        attributes["nodes_values"] = values.astype(float).tolist()
    attributes["n_targets"] = targets
    dtype = "float64" if double else "float32"
    outputs = [("y", TensorProto.FLOAT, (rows, targets))]
    made = model("TreeEnsembleRegressor", (rows, features), dtype, outputs, attributes)
    x = inputs(rng, rows, features, dtype)
    odd = rng.random(x.shape) < 0.3
    x[odd] = rng.choice(_LARGE, np.count_nonzero(odd))
    return made, x


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_halves(seed) -> None:
    rng = np.random.default_rng(seed)
    rows, features = int(rng.choice([1, 3, 8, 13, 100])), int(rng.integers(1, 7))
    made, x = _model(rng, rows, features, targets=int(rng.integers(1, 4)), halves=True)
    assert _packed(made, x) == [HALF_BITS]


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_bins(seed, double) -> None:
    rng = np.random.default_rng(seed)
    rows, features = int(rng.choice([1, 3, 8, 13, 100])), int(rng.integers(1, 7))
    targets = int(rng.integers(1, 4))
    made, x = _model(rng, rows, features, targets, halves=False, double=double)
    [bits] = _packed(made, x)
    assert bits == BIN_BITS or not double


def test_thresholds_of_more_than_8_bits_are_not_packed() -> None:
    assert pack(_chain(255)).key_bits == BIN_BITS
    assert pack(_chain(256)) is None


def test_large_ensembles_are_packed_where_few_columns_need_short_keys() -> None:
    small = lay_out(_random(np.random.default_rng(0), "float64", 5, 10, 6))
    assert choose_words(small) is small
    # 4,096 trees of 16 nodes of 16 bytes: 1 MiB.
    large = lay_out(_random(np.random.default_rng(0), "float64", 2, 4096, 4))
    assert isinstance(choose_words(large), PackedLayout)
    wide = lay_out(_random(np.random.default_rng(0), "float64", 2000, 4096, 4))
    assert choose_words(wide) is wide


def _chain(thresholds: int):
    """Return the layout of one tree in which each node splits off a leaf, by one feature."""
    inner = np.arange(thresholds)
    leaves = thresholds + np.arange(thresholds + 1)
    padding = np.zeros(thresholds + 1)
    return lay_out(Ensemble(
        dtype="float64", features=1, targets=1, roots=np.zeros(1, int),
        mode=np.zeros(2 * thresholds + 1, int), feature=np.zeros(2 * thresholds + 1, int),
        threshold=np.concatenate([inner / 7, padding]),
        if_true=np.concatenate([leaves[:-1], padding]).astype(int),
        if_false=np.concatenate([inner[1:], leaves[-1:], padding]).astype(int),
        missing_true=np.zeros(2 * thresholds + 1, bool),
        leaf=np.repeat([False, True], [thresholds, thresholds + 1]),
        weight_node=leaves, weight_target=np.zeros(thresholds + 1, int),
        weight=np.arange(thresholds + 1.0),
    ))  # fmt: skip
