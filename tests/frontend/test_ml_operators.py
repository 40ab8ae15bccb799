"""Operators of ai.onnx.ml: the numbers of ONNX Runtime, in all attribute forms, compiled."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tvmopt.device.target import resolve_target
from tvmopt.errors import UnsupportedOperatorError
from tvmopt.frontend import import_onnx, prepare
from tvmopt.stages.check import compile_for_check

_TYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
}
# Every example compiles many nodes, so that a failure is not made smaller.
_FEW = settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
_TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
_CLASSIFIERS = ("LinearClassifier", "SVMClassifier")


def _graph(nodes, inputs, opset=4):
    """Return a model of nodes (operator, inputs, attributes), each with all its outputs."""
    made, outputs = [], []
    for number, (op, names, attributes) in enumerate(nodes):
        count = 2 if op in _CLASSIFIERS else 1
        own = [f"{op}_{number}_{at}" for at in range(count)]
        made.append(helper.make_node(op, names, own, domain="ai.onnx.ml", **attributes))
        outputs += own
    values = [
        helper.make_tensor_value_info(name, _TYPES[str(array.dtype)], array.shape)
        for name, array in inputs.items()
    ]
    graph = helper.make_graph(
        made, "g", values, [helper.make_empty_tensor_value_info(name) for name in outputs]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _check(nodes, inputs, opset=4, tolerance=1e-5):
    model = _graph(nodes, inputs, opset)
    prepared = prepare(model, {}).model
    run = compile_for_check(import_onnx(prepared), resolve_target("host", 1))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, inputs)
    outputs = session.get_outputs()
    for output, got, want in zip(outputs, run([*inputs.values()]), wanted, strict=True):
        found = f"{output.name}: {got.dtype} {got.shape}, not {want.dtype} {want.shape}"
        assert (got.dtype, got.shape) == (want.dtype, want.shape), found
        np.testing.assert_allclose(
            got, want, rtol=tolerance, atol=tolerance, equal_nan=True, err_msg=output.name
        )


def _floats(rng, *shape):
    return rng.standard_normal(shape).astype("float32")


def _special(x):
    """Put NaN, infinities and zeros into the first rows."""
    x = x.copy()
    x[0, 0], x[1, -1], x[2, 0] = np.nan, np.inf, -np.inf
    x[3], x[4] = 0, np.nan
    return x


@_FEW
@given(seed=st.integers(0, 2**31), dtype=st.sampled_from(sorted(_TYPES)), columns=st.integers(1, 6))
def test_linear_models(seed, dtype, columns) -> None:
    rng = np.random.default_rng(seed)
    x = (_floats(rng, 9, columns) * 3).astype(dtype)
    if dtype.startswith("float"):
        x = _special(x)
    nodes = []
    for transform in _TRANSFORMS:
        for classes in (1, 2, 5):
            weights = {
                "coefficients": _floats(rng, classes * columns).tolist(),
                "intercepts": _floats(rng, classes).tolist(),
                "post_transform": transform,
            }
            labels = max(2, classes)
            if (transform, classes) != ("PROBIT", 1):  # which leaves the second column undefined
                names = {"classlabels_ints": rng.permutation(labels * 3)[:labels].tolist()}
                nodes.append(("LinearClassifier", ["x"], weights | names))
            if dtype == "float32":
                nodes.append(("LinearRegressor", ["x"], weights | {"targets": classes}))
    if dtype == "float32":
        weights = {"coefficients": _floats(rng, 2 * columns).tolist(), "targets": 2}
        nodes.append(("LinearRegressor", ["x"], weights))
    _check(nodes, {"x": x})


def test_one_axis_is_one_row() -> None:
    x = np.array([0.5, -2.0, 3.0], "float32")
    weights = {"coefficients": [1.0, 2.0, 3.0, -1.0, 0.5, 2.0], "intercepts": [0.5, 1.0]}
    support = {
        "coefficients": [0.5, -1.0], "rho": [0.25], "kernel_params": [0.3, 0.1, 3.0],
        "support_vectors": [1.0, 2.0, 0.5, -1.0, 0.25, 1.0], "kernel_type": "RBF",
    }  # fmt: skip
    nodes = [
        ("LinearClassifier", ["x"], weights | {"classlabels_ints": [4, 2]}),
        ("LinearRegressor", ["x"], weights | {"targets": 2}),
        ("SVMRegressor", ["x"], support | {"n_supports": 2}),
        ("Scaler", ["x"], {"offset": [1.0, 2.0, 3.0], "scale": [2.0, 0.5, 1.5]}),
        ("Normalizer", ["x"], {"norm": "L2"}),
        ("Imputer", ["x"], {"imputed_value_floats": [7.0, 8.0, 9.0], "replaced_value_float": 0.5}),
        ("OneHotEncoder", ["x"], {"cats_int64s": [-2, 3, 0]}),
    ]
    _check(nodes, {"x": x})


@_FEW
@given(seed=st.integers(0, 2**31), classes=st.integers(2, 5), has_nan=st.booleans())
def test_support_vector_classifiers(seed, classes, has_nan) -> None:
    rng = np.random.default_rng(seed)
    columns, counts = 4, rng.integers(1, 5, classes)
    total, pairs = int(counts.sum()), classes * (classes - 1) // 2
    x = _floats(rng, 12, columns)
    x = _special(x) if has_nan else x
    nodes = []
    for kernel, degree in [("LINEAR", 0), ("RBF", 3), ("POLY", 2), ("POLY", 3), ("SIGMOID", 3)]:
        common = {
            "classlabels_ints": rng.permutation(classes * 2)[:classes].tolist(),
            "coefficients": _floats(rng, (classes - 1) * total).tolist(),
            "kernel_params": [0.4, 0.3, float(degree)],
            "kernel_type": kernel,
            "rho": _floats(rng, pairs).tolist(),
            "support_vectors": _floats(rng, total * columns).tolist(),
            "vectors_per_class": counts.tolist(),
        }
        nodes.append(("SVMClassifier", ["x"], common))
        if kernel == "RBF":
            names = [name for name in _TRANSFORMS if classes > 2 or name != "PROBIT"]
            nodes += [("SVMClassifier", ["x"], common | {"post_transform": n}) for n in names]
        sigmoid = {
            "prob_a": (-np.abs(_floats(rng, pairs)) - 0.5).tolist(),
            "prob_b": _floats(rng, pairs).tolist(),
        }
        nodes.append(("SVMClassifier", ["x"], common | sigmoid))
    _check(nodes, {"x": x}, tolerance=2e-5)


@_FEW
@given(seed=st.integers(0, 2**31), dtype=st.sampled_from(sorted(_TYPES)))
def test_linear_support_vector_classifiers(seed, dtype) -> None:
    rng = np.random.default_rng(seed)
    x = (_floats(rng, 11, 3) * 2).astype(dtype)
    nodes = []
    for classes in (2, 4):
        for weights in (_floats(rng, classes * 3), np.abs(_floats(rng, classes * 3))):
            for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
                attributes = {
                    "classlabels_ints": rng.permutation(9)[:classes].tolist(),
                    "coefficients": weights.tolist(),
                    "kernel_params": [0.4, 0.3, 3.0],
                    "rho": [0.25],
                    "post_transform": transform,
                }
                nodes.append(("SVMClassifier", ["x"], attributes))
    _check(nodes, {"x": x})


@_FEW
@given(seed=st.integers(0, 2**31), one_class=st.integers(0, 1))
def test_support_vector_regressors(seed, one_class) -> None:
    rng = np.random.default_rng(seed)
    x, total = _special(_floats(rng, 10, 5)), 7
    nodes = []
    for kernel, degree in [("LINEAR", 0), ("RBF", 3), ("POLY", 2), ("POLY", 4), ("SIGMOID", 3)]:
        attributes = {
            "coefficients": _floats(rng, total).tolist(),
            "kernel_params": [0.4, 0.3, float(degree)],
            "kernel_type": kernel,
            "n_supports": total,
            "one_class": one_class,
            "rho": _floats(rng, 1).tolist(),
            "support_vectors": _floats(rng, total * 5).tolist(),
        }
        nodes.append(("SVMRegressor", ["x"], attributes))
    linear = {
        "coefficients": _floats(rng, 5).tolist(),
        "kernel_params": [0.4, 0.3, 3.0],
        "rho": [0.5],
    }
    nodes.append(("SVMRegressor", ["x"], linear | {"n_supports": 0, "one_class": one_class}))
    _check(nodes, {"x": x}, tolerance=2e-5)


@_FEW
@given(seed=st.integers(0, 2**31), dtype=st.sampled_from(sorted(_TYPES)), columns=st.integers(1, 5))
def test_features(seed, dtype, columns) -> None:
    rng = np.random.default_rng(seed)
    x = (_floats(rng, 9, columns) * 4).astype(dtype)
    if dtype.startswith("float"):
        x = _special(x)
    nodes = []
    for count in {1, columns}:
        values = {"offset": _floats(rng, count).tolist(), "scale": _floats(rng, count).tolist()}
        nodes.append(("Scaler", ["x"], values))
    nodes += [("Normalizer", ["x"], {"norm": norm}) for norm in ("MAX", "L1", "L2")]
    columns_of = rng.integers(0, columns, (2, 3))
    nodes.append(("ArrayFeatureExtractor", ["x", "places"], {}))
    widths = [columns + 2, max(1, columns - 1), columns]
    nodes.append(("FeatureVectorizer", ["x"] * 3, {"inputdimensions": widths}))
    if dtype == "float32":
        for missing in (np.nan, 0.0, np.inf):
            for count in {1, columns, 7}:
                filled = _floats(rng, count).tolist()
                attributes = {"imputed_value_floats": filled, "replaced_value_float": missing}
                nodes.append(("Imputer", ["x"], attributes))
    if dtype == "int64":
        for count in {1, columns}:
            attributes = {"imputed_value_int64s": list(range(count)), "replaced_value_int64": 2}
            nodes.append(("Imputer", ["x"], attributes))
    if dtype != "int32":
        categories = [3, -1, 0, 2, 3, 2**53 + 1]
        nodes.append(("OneHotEncoder", ["x"], {"cats_int64s": categories}))
    _check(nodes, {"x": x, "places": columns_of})


def test_binarizer_and_what_onnxruntime_refuses() -> None:
    x = np.array([[0.5, 1.5, np.inf], [-np.inf, 1.0, 2.0]], "float32")
    nodes = [("Binarizer", ["x"], {"threshold": 1.0}), ("Binarizer", ["x"], {})]
    _check(nodes, {"x": x})
    model = prepare(_graph(nodes[:1], {"x": x}), {}).model
    run = compile_for_check(import_onnx(model), resolve_target("host", 1))
    [got] = run([np.array([[np.nan, 2.0, 0.0]] * 2, "float32")])
    np.testing.assert_array_equal(got, [[np.nan, 1.0, 0.0]] * 2)


@pytest.mark.parametrize("opset", [2, 4])
def test_label_encoders(opset) -> None:
    rng = np.random.default_rng(opset)
    x = rng.integers(-5, 30, (4, 6))
    x[0, 0], x[1, 1] = 2**40, -(2**40)
    y = x.astype("float32") / 2
    y[0, 1], y[0, 2] = np.nan, np.inf
    dense, sparse = [3, 5, -2, 5, 20], [3, 2**40, -(2**40), 7, 3]
    halves = [1.5, float("nan"), float("inf"), 1.5, -0.5]
    nodes = []
    for key in (dense, sparse):
        values = {"keys_int64s": key, "values_int64s": [10, 11, 12, 13, 14]}
        nodes.append(("LabelEncoder", ["x"], values | {"default_int64": 99}))
        values = {"keys_int64s": key, "values_floats": [0.5, 1.5, 2.5, 3.5, 4.5]}
        nodes.append(("LabelEncoder", ["x"], values))
    values = {"keys_floats": halves, "values_int64s": [1, 2, 3, 4, 5]}
    nodes.append(("LabelEncoder", ["y"], values))
    values = {"keys_floats": halves, "values_floats": [0.5, 1.5, 2.5, 3.5, 4.5]}
    nodes.append(("LabelEncoder", ["y"], values | {"default_float": -7.5}))
    inputs = {"x": x, "y": y}
    if opset >= 4:
        doubles = numpy_helper.from_array(np.array([1.5, np.nan, 4.0]))
        given = numpy_helper.from_array(np.array([2.25, 3.25, 4.25]))
        default = numpy_helper.from_array(np.array([9.5]))
        tensors = {"keys_tensor": doubles, "values_tensor": given, "default_tensor": default}
        nodes.append(("LabelEncoder", ["z"], tensors))
        inputs["z"] = y.astype("float64")
    _check(nodes, inputs, opset)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (("OneHotEncoder", ["x"], {"cats_int64s": [1, 2], "zeros": 0}), "zeros=0 refuses unknown"),
        (
            ("ArrayFeatureExtractor", ["x", "places"], {}),
            "indices must be columns below 3",
        ),
    ],
)
def test_refusals(node, message) -> None:
    model = _graph([node], {"x": np.zeros((2, 3), "int64")})
    if len(node[1]) > 1:
        tensor = numpy_helper.from_array(np.array([3]), "places")
        model.graph.initializer.append(tensor)
        value = helper.make_tensor_value_info("x", TensorProto.INT64, (2, 3))
        model.graph.input[0].CopyFrom(value)
    with pytest.raises(UnsupportedOperatorError, match=message):
        import_onnx(model)
