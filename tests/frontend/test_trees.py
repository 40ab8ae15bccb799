"""Ensembles of trees against ONNX Runtime: all modes, forms of attributes and post-transforms."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from tests.frontend.random_trees import inputs, joined, model, new_form, old_form
from tvmopt.device.target import resolve_target
from tvmopt.errors import UnsupportedOperatorError
from tvmopt.frontend import import_onnx, prepare
from tvmopt.stages.check import compile_for_check

TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
AGGREGATES = ("SUM", "AVERAGE", "MIN", "MAX")
_examples = settings(max_examples=8, deadline=None)


def _both(made, x):
    """Return the outputs of ONNX Runtime and of the compiled model."""
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    run = compile_for_check(import_onnx(prepare(made, {}).model), resolve_target("host", 1))
    return session.run(None, {"x": x}), run([x])


def _same(made, x, atol=2e-6):
    for want, got in zip(*_both(made, x), strict=True):
        assert got.dtype == want.dtype
        if want.dtype == np.int64:
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=atol)


def _targets(rows, count, kind=TensorProto.FLOAT):
    return [("y", kind, (rows, count))]


@_examples
@given(st.integers(0, 2**32 - 1))
def test_regressor(seed) -> None:
    rng = np.random.default_rng(seed)
    targets, features = int(rng.integers(1, 4)), int(rng.integers(1, 7))
    rows = int(rng.choice([1, 3, 8, 13, 100]))
    double = rng.random() < 0.3
    dtype = "float64" if double else "float32"
    ids = (targets, targets) if rng.random() < 0.5 else [int(rng.integers(targets))]
    attributes = old_form(
        rng, "target", trees=int(rng.integers(1, 20)), depth=int(rng.integers(0, 6)),
        features=features, ids=ids, missing=rng.random() < 0.7, double=double,
    )  # fmt: skip
    attributes |= {"n_targets": targets, "aggregate_function": str(rng.choice(AGGREGATES))}
    if rng.random() < 0.5 and not double:
        attributes["base_values"] = rng.normal(size=targets).tolist()
    made = model(
        "TreeEnsembleRegressor", (rows, features), dtype, _targets(rows, targets), attributes
    )
    _same(made, inputs(rng, rows, features, dtype))


@_examples
@given(st.integers(0, 2**32 - 1))
def test_new_form(seed) -> None:
    rng = np.random.default_rng(seed)
    targets, features = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    rows = int(rng.choice([1, 9, 40]))
    dtype = str(rng.choice(["float32", "float64"]))
    attributes = new_form(
        rng, trees=int(rng.integers(1, 12)), depth=int(rng.integers(1, 5)), features=features,
        targets=targets, dtype=dtype,
    )  # fmt: skip
    attributes["aggregate_function"] = int(rng.integers(4))
    kind = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    made = model("TreeEnsemble", (rows, features), dtype, _targets(rows, targets, kind), attributes)
    x = inputs(rng, rows, features, dtype)
    x[rng.random(x.shape) < 0.3] = 2.0  # a member of many sets
    # Of features of membership tests, ONNX Runtime drops the fraction in some sets.
    x = np.trunc(x)
    _same(made, x)


@_examples
@given(st.integers(0, 2**32 - 1))
def test_classifier(seed) -> None:
    rng = np.random.default_rng(seed)
    classes, features = int(rng.integers(2, 5)), int(rng.integers(1, 5))
    rows = int(rng.choice([1, 9, 40]))
    ids = list(range(classes)) if rng.random() < 0.5 else [0]
    if classes > 2 and rng.random() < 0.5:
        ids = (classes, classes)  # leaves without weights for some classes
    attributes = old_form(
        rng, "class", trees=int(rng.integers(1, 12)), depth=int(rng.integers(0, 5)),
        features=features, ids=ids,
    )  # fmt: skip
    attributes["classlabels_int64s"] = [0, 1] if classes == 2 else [7, 3, 11, 5][:classes]
    attributes["post_transform"] = str(rng.choice(TRANSFORMS[:4]))
    if rng.random() < 0.5:
        attributes["base_values"] = rng.normal(size=classes).tolist()
    outputs = [("label", TensorProto.INT64, (rows,)), ("y", TensorProto.FLOAT, (rows, classes))]
    made = model("TreeEnsembleClassifier", (rows, features), "float32", outputs, attributes)
    _same(made, inputs(rng, rows, features))


@pytest.mark.sample(3)
@pytest.mark.parametrize("positive", [True, False], ids=["positive", "mixed"])
@pytest.mark.parametrize("base", [[], [0.25], [0.25, 0.125]], ids=["no base", "one", "two"])
@pytest.mark.parametrize("ids", [[0], [1], [0, 1]], ids=str)
def test_two_classes(positive, base, ids) -> None:
    rng = np.random.default_rng(3)
    x = inputs(rng, 20, 2)
    attributes = old_form(rng, "class", trees=3, depth=3, features=2, ids=ids)
    if positive:
        weights = np.abs(attributes["class_weights"]) / 3
        attributes["class_weights"] = weights.tolist()
    attributes["classlabels_int64s"] = [3, 7]
    if base:
        attributes["base_values"] = base
    outputs = [("label", TensorProto.INT64, (20,)), ("y", TensorProto.FLOAT, (20, 2))]
    made, refused = [], {}
    for transform in TRANSFORMS:
        change = attributes | {"post_transform": transform}
        each = model("TreeEnsembleClassifier", (20, 2), "float32", outputs, change)
        # ONNX Runtime leaves the second score unset, or ignores the weights.
        if ids == [0] and len(base) < 2 and transform == "PROBIT":
            refused["PROBIT must have scores of both classes"] = each
        elif ids == [1] and len(base) == 2:
            refused["base_values must not be two"] = each
        else:
            made.append(each)
    for message, each in refused.items():
        with pytest.raises(UnsupportedOperatorError, match=message):
            import_onnx(each)
    if made:
        _same(joined(made), x, atol=2e-5)


@pytest.mark.parametrize("targets", [1, 3])
def test_post_transforms_of_targets(targets) -> None:
    rng = np.random.default_rng(5)
    attributes = old_form(
        rng, "target", trees=4, depth=3, features=3, ids=(targets, targets), missing=False
    )
    weights = np.abs(attributes["target_weights"]) / 8  # probabilities, for PROBIT
    attributes |= {"target_weights": weights.tolist(), "n_targets": targets}
    outputs = _targets(30, targets)
    made = [
        model("TreeEnsembleRegressor", (30, 3), "float32", outputs, attributes | change)
        for change in ({"post_transform": transform} for transform in TRANSFORMS)
    ]
    _same(joined(made), inputs(rng, 30, 3), atol=2e-5)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(dtype) -> None:
    rng = np.random.default_rng(6)
    attributes = old_form(rng, "class", trees=5, depth=4, features=3, ids=[0, 1, 2])
    attributes["classlabels_int64s"] = [5, 6, 9]
    outputs = [("label", TensorProto.INT64, (30,)), ("y", TensorProto.FLOAT, (30, 3))]
    made = model("TreeEnsembleClassifier", (30, 3), dtype, outputs, attributes)
    _same(made, rng.integers(-3, 4, (30, 3)).astype(dtype))


def test_more_nodes_than_narrow_words_can_number() -> None:
    """A complete tree of depth 15, which returns the integer that its feature is rounded to."""
    depth = 15
    inner, size = 2**depth - 1, 2 ** (depth + 1) - 1
    number = np.arange(inner)
    level = np.floor(np.log2(number + 1)).astype(int)
    width = 2.0 ** (depth - level)
    values = np.zeros(size)
    values[:inner] = (number + 1 - 2**level + 0.5) * width - 0.5
    true, false = np.zeros(size, int), np.zeros(size, int)
    true[:inner], false[:inner] = 2 * number + 1, 2 * number + 2
    leaves = list(range(inner, size))
    attributes = {
        "nodes_treeids": [0] * size, "nodes_nodeids": list(range(size)),
        "nodes_featureids": [0] * size, "nodes_values": values.tolist(),
        "nodes_modes": ["BRANCH_LEQ"] * inner + ["LEAF"] * len(leaves),
        "nodes_truenodeids": true.tolist(), "nodes_falsenodeids": false.tolist(),
        "target_treeids": [0] * len(leaves), "target_nodeids": leaves,
        "target_ids": [0] * len(leaves), "n_targets": 1,
        "target_weights": np.arange(len(leaves), dtype=float).tolist(),
    }  # fmt: skip
    made = model("TreeEnsembleRegressor", (5, 1), "float32", _targets(5, 1), attributes)
    x = np.array([[-9.0], [17.4], [30_000.0], [1e9], [np.nan]], "float32")
    run = compile_for_check(import_onnx(prepare(made, {}).model), resolve_target("host", 1))
    np.testing.assert_array_equal(run([x])[0][:, 0], [0, 17, 30_000, 2**depth - 1, 2**depth - 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_truenodeids": [9] * 3}, "branches and weights must refer to nodes"),
        ({"nodes_modes": ["BRANCH_LEQ", "LEAF"]}, "attributes of nodes must have one length"),
        ({"nodes_featureids": [4, 0, 0]}, r"features must be in \[0, 2\), but one is 4"),
        ({"nodes_truenodeids": [0] * 3}, "must not form a cycle"),
        ({"target_ids": [0, 3]}, r"targets of weights must be in \[0, 1\), but one is 3"),
        ({"post_transform": "OTHER"}, "post_transform must be of NONE"),
        ({"aggregate_function": "OTHER"}, "aggregate_function must be of"),
    ],
    ids=["node", "length", "feature", "cycle", "target", "transform", "aggregate"],
)  # fmt: skip
def test_contradictions_are_named(change, message) -> None:
    attributes = {
        "nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
        "target_weights": [1.0, 2.0], "n_targets": 1,
    }  # fmt: skip
    made = model("TreeEnsembleRegressor", (4, 2), "float32", _targets(4, 1), attributes | change)
    with pytest.raises(UnsupportedOperatorError, match=message):
        import_onnx(made)
