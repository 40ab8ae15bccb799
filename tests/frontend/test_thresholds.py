"""Rounded thresholds of trees: few of each feature, each near the model's own."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontend.random_trees import model, new_form, old_form
from tvmopt.frontend.trees.thresholds import has_large_trees, has_trees, round_thresholds

_FEATURES, _ROWS = 3, 500


def _model(modes=("BRANCH_LEQ", "BRANCH_GT"), *, double=False, scale=1.0, trees=60):
    """Return an ensemble with some thousand thresholds."""
    rng = np.random.default_rng(0)
    attributes = old_form(
        rng, "target", trees=trees, depth=6, features=_FEATURES, ids=[0], modes=modes,
        double=double,
    )  # fmt: skip
    count = len(attributes["nodes_modes"])
    values = scale * rng.normal(size=count)
    if double:
        attributes["nodes_values_as_tensor"] = numpy_helper.from_array(values, "values")
    else:
        attributes["nodes_values"] = values.tolist()
    attributes["n_targets"] = 1
    dtype = "float64" if double else "float32"
    outputs = [("y", TensorProto.FLOAT, (_ROWS, 1))]
    return model("TreeEnsembleRegressor", (_ROWS, _FEATURES), dtype, outputs, attributes)


def _attributes(made):
    return {a.name: helper.get_attribute_value(a) for a in made.graph.node[0].attribute}


def _thresholds(made):
    """Return thresholds of inner nodes, and their features."""
    found = _attributes(made)
    inner = np.array(found["nodes_modes"]) != b"LEAF"
    return np.array(found["nodes_values"], np.float32)[inner], np.array(found["nodes_featureids"])[
        inner
    ]


def _run(made, x):
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def test_float16() -> None:
    made = _model()
    before, _ = _thresholds(made)
    rounded = round_thresholds(made, "float16")
    after, _ = _thresholds(rounded)
    np.testing.assert_array_equal(after, before.astype(np.float16).astype(np.float32))
    assert (_thresholds(made)[0] == before).all()  # the model is not modified


@pytest.mark.parametrize("double", [False, True])
def test_int8(double) -> None:
    made = _model(double=double)
    rounded = round_thresholds(made, "int8")
    found = _attributes(rounded)
    values = found.get("nodes_values")
    if values is None:
        values = numpy_helper.to_array(found["nodes_values_as_tensor"])
    feature = np.array(found["nodes_featureids"])
    inner = np.array(found["nodes_modes"]) != b"LEAF"
    counts = [
        len(np.unique(np.array(values)[inner & (feature == one)])) for one in range(_FEATURES)
    ]
    assert max(counts) <= 255
    assert min(counts) > 200
    onnx.checker.check_model(rounded)


def test_int8_moves_a_threshold_within_its_255th_of_all() -> None:
    made = _model()
    (before, feature), (after, _) = _thresholds(made), _thresholds(round_thresholds(made, "int8"))
    for one in range(_FEATURES):
        own = feature == one
        places = np.searchsorted(np.sort(before[own]), [before[own], after[own]])
        assert np.abs(np.diff(places, axis=0)).max() <= np.count_nonzero(own) / 255 + 1


@pytest.mark.parametrize("thresholds", ["float16", "int8"])
def test_answers_stay_near(thresholds) -> None:
    made = _model(modes=("BRANCH_LT", "BRANCH_LEQ", "BRANCH_GTE", "BRANCH_GT"))
    x = np.random.default_rng(1).normal(size=(_ROWS, _FEATURES)).astype(np.float32)
    before, after = _run(made, x), _run(round_thresholds(made, thresholds), x)
    error = np.square(after - before).mean() / before.var()
    assert 0 < error < 0.05


def test_strict_comparisons_of_integers_keep_their_answers() -> None:
    made = _model(modes=("BRANCH_LT", "BRANCH_GTE"))
    for attribute in made.graph.node[0].attribute:
        if attribute.name == "nodes_values":
            attribute.floats[0:] = np.round(np.array(attribute.floats) * 3).tolist()
            attribute.floats[0] = 0.1  # so that one changes
    x = np.random.default_rng(1).integers(-9, 9, (_ROWS, _FEATURES)).astype(np.float32)
    rounded = round_thresholds(made, "float16")
    assert rounded is not made
    np.testing.assert_array_equal(_run(rounded, x), _run(made, x))


@pytest.mark.parametrize("thresholds", ["exact", "float16", "int8"])
def test_thresholds_that_fit_leave_the_model(thresholds) -> None:
    made = _model(trees=1)
    for attribute in made.graph.node[0].attribute:
        if attribute.name == "nodes_values":
            attribute.floats[:] = np.round(attribute.floats).tolist()
    assert round_thresholds(made, thresholds) is made


def test_wide_thresholds_and_large_ones_keep_their_values_in_float16() -> None:
    made = _model(double=True)
    assert round_thresholds(made, "float16") is made
    made = _model(scale=1e7)
    before, after = _thresholds(made)[0], _thresholds(round_thresholds(made, "float16"))[0]
    large = np.abs(before) > 65520
    np.testing.assert_array_equal(after[large], before[large])


def test_new_form() -> None:
    rng = np.random.default_rng(0)
    attributes = new_form(rng, trees=9, depth=4, features=2, targets=1, dtype="float32")
    attributes["aggregate_function"] = 1
    outputs = [("y", TensorProto.FLOAT, (_ROWS, 1))]
    made = model("TreeEnsemble", (_ROWS, 2), "float32", outputs, attributes)
    rounded = round_thresholds(made, "float16")
    onnx.checker.check_model(rounded)
    splits = numpy_helper.to_array(_attributes(rounded)["nodes_splits"])
    modes = numpy_helper.to_array(_attributes(rounded)["nodes_modes"])
    assert not np.isin(modes, [1, 2]).any()  # LT and GTE
    ordered = np.isin(modes, [0, 3]) & np.isfinite(splits)
    np.testing.assert_array_equal(splits[ordered], splits[ordered].astype(np.float16))
    assert has_trees(made) and not has_trees(onnx.ModelProto())


def test_large_ensembles_have_more_nodes_than_a_cache_holds() -> None:
    assert not has_large_trees(_model())
    assert has_large_trees(_model(trees=1500))
