"""Models with strings as models with codes: the same answers in ONNX Runtime, or one line."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tvmopt.errors import AccuracyError, ModelError
from tvmopt.frontend.categories import read_tables, without_strings
from tvmopt.frontend.categories.check import check_codes
from tvmopt.runtime.categories import MOST_BYTES, Categories

_WORDS = ["red", "green", "blue", "", "grün", "nan"]
_STRING, _FLOAT, _INT = TensorProto.STRING, TensorProto.FLOAT, TensorProto.INT64


def _node(op, inputs, outputs, **attributes):
    domain = "ai.onnx.ml" if op in _ML else ""
    return helper.make_node(op, inputs, outputs, name=outputs[0], domain=domain, **attributes)


_ML = (
    "OneHotEncoder", "LabelEncoder", "CategoryMapper", "ArrayFeatureExtractor", "LinearClassifier",
    "ZipMap", "SVMClassifier", "TreeEnsembleClassifier",
)  # fmt: skip


def _model(nodes, inputs, outputs, constants=(), ml=3):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.array(array), name) for name, array in dict(constants).items()],
    )
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("ai.onnx.ml", ml)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _run(model, inputs):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def _answers_alike(model, inputs):
    """Run both models; return the one with codes."""
    coded = without_strings(model)
    tables = read_tables(coded)
    codes = {
        name: Categories(name, tables.inputs[name]).encode(array)
        if name in tables.inputs
        else array
        for name, array in inputs.items()
    }
    got, want = _run(coded, codes), _run(model, inputs)
    for name, value in got.items():
        if name in tables.outputs:
            value = Categories(name, tables.outputs[name]).decode(value)
            assert value.dtype.kind == "U"
        np.testing.assert_array_equal(value, want[name], err_msg=name)
    return coded


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_moves_mappings_and_comparisons(data) -> None:
    words = st.sampled_from(_WORDS)
    some = st.lists(words, min_size=1, max_size=5, unique=True)
    rows = data.draw(st.integers(1, 6))
    table = st.lists(st.lists(words, min_size=2, max_size=2), min_size=rows, max_size=rows)
    inputs = {
        "a": np.array(data.draw(table), object),
        "b": np.array(data.draw(table), object)[:, :1],
    }
    keys = data.draw(some)
    numbers = data.draw(st.lists(st.integers(-9, 9), min_size=len(keys), max_size=len(keys)))
    texts = data.draw(st.lists(words, min_size=len(keys), max_size=len(keys)))
    labels = data.draw(st.lists(words, min_size=3, max_size=3, unique=True))
    nodes = [
        _node("Concat", ["a", "b"], ["joined"], axis=1),
        _node("Gather", ["joined", "column"], ["column_"], axis=1),
        _node("ArrayFeatureExtractor", ["joined", "columns"], ["pair"]),
        _node("OneHotEncoder", ["pair"], ["one_hot"], cats_strings=data.draw(some)),
        _node("LabelEncoder", ["column_"], ["number"], keys_strings=keys, values_int64s=numbers),
        _node(
            "LabelEncoder", ["a"], ["real"],
            keys_strings=keys, values_floats=[n / 2 for n in numbers], default_float=7.5,
        ),
        _node(
            "LabelEncoder", ["joined"], ["renamed"],
            keys_strings=keys, values_strings=texts, default_string=data.draw(words),
        ),
        _node("OneHotEncoder", ["renamed"], ["again"], cats_strings=data.draw(some)),
        _node("Equal", ["joined", "missing"], ["is_missing"]),
        _node("Where", ["is_missing", "filling", "joined"], ["filled"]),
        _node("OneHotEncoder", ["filled"], ["filled_hot"], cats_strings=data.draw(some)),
        _node("CategoryMapper", ["b"], ["mapped"], cats_strings=keys, cats_int64s=numbers),
        _node("Slice", ["joined", "one", "three", "one"], ["tail"]),
        _node("Reshape", ["tail", "flat"], ["flattened"]),
        _node("LabelEncoder", ["flattened"], ["last"], keys_strings=keys, values_int64s=numbers),
        _node(
            "LinearClassifier", ["real"], ["label", "scores"], classlabels_strings=labels,
            coefficients=[1.0, -2.0, 0.5, 0.25, -1.0, 3.0], intercepts=[0.0, 0.5, -0.5],
        ),
        _node("Identity", ["label"], ["class"]),
    ]  # fmt: skip
    outputs = {
        "one_hot": _FLOAT, "number": _INT, "real": _FLOAT, "renamed": _STRING, "again": _FLOAT,
        "filled_hot": _FLOAT, "mapped": _INT, "last": _INT, "class": _STRING, "scores": _FLOAT,
    }  # fmt: skip
    constants = {
        "column": [1], "columns": [2, 0], "one": [1], "three": [rows + 1], "flat": [-1],
        "missing": np.array(["nan"], object), "filling": np.array([data.draw(words)], object),
    }  # fmt: skip
    kinds = {"a": (_STRING, [rows, 2]), "b": (_STRING, [rows, 1])}
    coded = _answers_alike(_model(nodes, kinds, outputs, constants), inputs)
    assert read_tables(coded).outputs["class"][:3] == tuple(labels)


@pytest.mark.parametrize("ml", [1, 3])
def test_category_mapper_to_strings(ml) -> None:
    node = _node("CategoryMapper", ["x"], ["y"], cats_strings=["u", "v"], cats_int64s=[7, 3])
    model = _model([node], {"x": (_INT, [4])}, {"y": _STRING}, ml=ml)
    coded = _answers_alike(model, {"x": np.array([3, 7, 5, 3])})
    assert read_tables(coded).outputs == {"y": ("u", "v", "_Unused")}


def test_label_encoder_of_the_first_version() -> None:
    node = _node("LabelEncoder", ["x"], ["y"], classes_strings=["u", "v"], default_int64=-3)
    node.attribute.append(helper.make_attribute("default_string", "none"))
    model = _model([node], {"x": (_STRING, [3])}, {"y": _INT}, ml=1)
    _answers_alike(model, {"x": np.array(["v", "w", "u"], object)})


def test_numbers_that_labels_spell() -> None:
    nodes = [
        _node(
            "LabelEncoder", ["x"], ["text"], keys_int64s=[1, 2], values_strings=["10", "2.5"],
            default_string="-1",
        ),
        _node("Cast", ["text"], ["y"], to=_FLOAT),
        _node("Cast", ["text"], ["same"], to=_STRING),
    ]  # fmt: skip
    outputs = {"y": _FLOAT, "same": _STRING}
    _answers_alike(_model(nodes, {"x": (_INT, [3])}, outputs), {"x": np.array([2, 1, 9])})


def test_tensor_attributes_of_label_encoders() -> None:
    tensors = {
        "keys_tensor": numpy_helper.from_array(np.array(["u", "v", "u"], object)),
        "values_tensor": numpy_helper.from_array(np.array([1.5, 2.5, 3.5])),
        "default_tensor": numpy_helper.from_array(np.array([9.5])),
    }
    model = _model(
        [_node("LabelEncoder", ["x"], ["y"], **tensors)],
        {"x": (_STRING, [3])},
        {"y": TensorProto.DOUBLE},
        ml=4,
    )
    _answers_alike(model, {"x": np.array(["v", "w", "u"], object)})


@pytest.mark.parametrize("labels", [[4, 2], ["yes", "no"]])
def test_zip_map_is_its_scores(labels) -> None:
    is_text = isinstance(labels[0], str)
    name = "classlabels_strings" if is_text else "classlabels_ints"
    given = {name: labels, "coefficients": [1.0, -1.0], "intercepts": [0.0, 0.5]}
    name = "classlabels_strings" if is_text else "classlabels_int64s"
    nodes = [
        _node("LinearClassifier", ["x"], ["label", "scores"], **given),
        _node("ZipMap", ["scores"], ["maps"], **{name: labels}),
    ]
    model = _model(nodes, {"x": (_FLOAT, [3, 1])}, {"label": _STRING if is_text else _INT})
    kind = helper.make_map_type_proto(
        _STRING if is_text else _INT, helper.make_tensor_type_proto(_FLOAT, [])
    )
    sequence = helper.make_sequence_type_proto(kind)
    model.graph.output.append(helper.make_value_info("maps", sequence))
    coded, x = without_strings(model), np.array([[1.0], [np.inf], [-2.0]], "float32")
    tables = read_tables(coded)
    assert tables.columns == {"maps": tuple(map(str, labels))}
    got = _run(coded, {"x": x})
    want = [[row[label] for label in labels] for row in _run(model, {"x": x})["maps"]]
    np.testing.assert_array_equal(got["maps"], np.array(want, "float32"))
    check_codes(model, tables, {"x": x}, [got["label"], got["maps"]])
    with pytest.raises(AccuracyError, match="but output 'maps' differs"):
        check_codes(model, tables, {"x": x}, [got["label"], got["maps"] + 1])
    with pytest.raises(AccuracyError, match="but output 'label' differs"):
        check_codes(model, tables, {"x": x}, [got["label"][::-1], got["maps"]])


def test_trees_get_integer_labels() -> None:
    node = _node(
        "TreeEnsembleClassifier", ["x"], ["label", "scores"], classlabels_strings=["p", "q", "r"],
        nodes_treeids=[0], nodes_nodeids=[0], nodes_modes=["LEAF"], nodes_featureids=[0],
        nodes_values=[0.0], nodes_truenodeids=[0], nodes_falsenodeids=[0], class_treeids=[0] * 3,
        class_nodeids=[0] * 3, class_ids=[0, 1, 2], class_weights=[0.25, 0.5, 0.25],
    )  # fmt: skip
    model = _model([node], {"x": (_FLOAT, [2, 1])}, {"label": _STRING, "scores": _FLOAT})
    coded = _answers_alike(model, {"x": np.zeros((2, 1), "float32")})
    [found] = [a.ints for a in coded.graph.node[0].attribute if a.name == "classlabels_int64s"]
    assert list(found) == [0, 1, 2]
    assert read_tables(coded).outputs == {"label": ("p", "q", "r")}


def test_a_string_that_is_compared_with_none_has_a_table() -> None:
    kinds = {"x": (_STRING, [2]), "n": (_INT, [2])}
    coded = _answers_alike(
        _model([_node("Identity", ["n"], ["y"])], kinds, {"y": _INT}),
        {"x": np.array(["any", "thing"], object), "n": np.array([3, 4])},
    )
    assert read_tables(coded).inputs == {"x": ("",)}


def test_a_model_of_numbers_stays_as_it_is() -> None:
    model = _model([_node("Identity", ["x"], ["y"])], {"x": (_FLOAT, [2])}, {"y": _FLOAT})
    assert without_strings(model) is model
    assert not read_tables(model)


@pytest.mark.parametrize(
    ("nodes", "output", "message"),
    [
        (
            [_node("StringNormalizer", ["x"], ["y"])],
            _STRING,
            "StringNormalizer 'y' uses them otherwise; do this before the model",
        ),
        ([_node("Identity", ["x"], ["y"])], _STRING, "output 'y' may hold any string of an input"),
        ([_node("Equal", ["x", "x2"], ["y"])], TensorProto.BOOL, "compares two strings of the"),
        ([_node("Cast", ["x"], ["y"], to=_FLOAT)], _FLOAT, "Cast 'y' makes numbers of strings"),
        ([_node("Cast", ["n"], ["y"], to=_STRING)], _STRING, "Cast 'y' makes strings of numbers"),
        (
            [
                _node("LabelEncoder", ["n"], ["t"], keys_int64s=[1], values_strings=["one"]),
                _node("Cast", ["t"], ["y"], to=_FLOAT),
            ],
            _FLOAT,
            "makes numbers of strings that are none",
        ),
        (
            [
                _node(
                    "LinearClassifier", ["n"], ["y", "s"], classlabels_strings=[b"\xff", b"b"],
                    coefficients=[1.0, 2.0], intercepts=[0.0, 1.0],
                )
            ],
            _STRING,
            "strings of a model must be UTF-8",
        ),
        (
            [
                _node(
                    "LinearClassifier", ["n"], ["y", "s"], classlabels_strings=["a" * MOST_BYTES],
                    coefficients=[1.0], intercepts=[0.0],
                )
            ],
            _STRING,
            "the categories of a model must have at most",
        ),
    ],
)  # fmt: skip
def test_refusals(nodes, output, message) -> None:
    inputs = {"x": (_STRING, [2]), "x2": (_STRING, [2]), "n": (_INT, [2])}
    with pytest.raises(ModelError, match=message) as caught:
        without_strings(_model(nodes, inputs, {"y": output}))
    assert "\n" not in str(caught.value)
