"""Tests of input shapes: the text notation, and static shapes for dynamic dimensions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tvmopt.errors import ConfigError, ModelError
from tvmopt.frontend.given_shapes import format_input_shapes, parse_input_shapes
from tvmopt.frontend.shapes import declared_dims, fix_input_shapes, graph_inputs

NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters=",", exclude_categories=("Zs", "Cc")),
    min_size=1,
    max_size=12,
).filter(lambda name: name == name.strip())
DIMS = st.lists(st.integers(1, 10**6), max_size=6).map(tuple)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(NAMES, DIMS, max_size=4))
def test_parse_reverses_format(shapes):
    assert parse_input_shapes(format_input_shapes(shapes)) == shapes


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("", {}),
        ("  ", {}),
        ("image:1x3x224x224", {"image": (1, 3, 224, 224)}),
        (" a:1 , b:2x3 ,", {"a": (1,), "b": (2, 3)}),
        ("rate:", {"rate": ()}),
        ("serving/input:0:1x8", {"serving/input:0": (1, 8)}),
        ("a/b:0:", {"a/b:0": ()}),
    ],
)
def test_notation(text, shapes):
    assert parse_input_shapes(text) == shapes


@pytest.mark.parametrize(
    "entry", ["image", "1x3", ":1x3", "a:1x", "a:x3", "a:1X3", "a:-1x3", "a:1 x 3", "a:1.5", "a:?"]
)
def test_bad_notation_names_the_entry(entry):
    with pytest.raises(ConfigError) as caught:
        parse_input_shapes(f"ok:1x2,{entry}")
    assert "name:AxBxC" in str(caught.value)
    assert f"but got {entry!r}" in str(caught.value)


def test_zero_dimension():
    assert parse_input_shapes("a:1x0x3") == {"a": (1, 0, 3)}


def test_name_given_twice():
    with pytest.raises(ConfigError, match=r"each input once, but got 'a' twice"):
        parse_input_shapes("a:1,b:2,a:1")


@pytest.fixture
def model(make_model):
    """Make a model of one Add of two inputs with given shapes."""

    def make(a, b=(1,), constants=None):
        return make_model(
            [helper.make_node("Add", ["a", "b"], ["y"])],
            {"a": ("float32", a), "b": ("float32", b)},
            {"y": ("float32", ["out"])},
            constants,
        )

    return make


def _dims(model):
    return [declared_dims(value) for value in model.graph.input]


def test_dynamic_dimension_is_fixed(model):
    onnx_model = model(["batch", 3])
    assert fix_input_shapes(onnx_model, {"a": (4, 3)}) == {"a": (4, 3), "b": (1,)}
    assert _dims(onnx_model) == [[4, 3], [1]]


def test_static_inputs_may_be_left_out_or_repeated(model):
    assert fix_input_shapes(model([2, 3]), {}) == {"a": (2, 3), "b": (1,)}
    assert fix_input_shapes(model([2, 3]), {"a": (2, 3)}) == {"a": (2, 3), "b": (1,)}


def test_unknown_rank_is_fixed(model):
    onnx_model = model(None)
    fix_input_shapes(onnx_model, {"a": (4, 3)})
    assert _dims(onnx_model)[0] == [4, 3]


def test_scalar_of_unknown_rank_becomes_a_scalar(model):
    onnx_model = model(None)
    assert fix_input_shapes(onnx_model, {"a": ()})["a"] == ()
    assert _dims(onnx_model)[0] == []


@pytest.mark.parametrize("value", [-1, 0])
def test_dim_value_that_is_no_size_counts_as_dynamic(model, value):
    onnx_model = model([1, 3])
    onnx_model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = value
    with pytest.raises(ModelError, match=r"these are dynamic: a \(\?x3\)"):
        fix_input_shapes(onnx_model, {})
    assert fix_input_shapes(onnx_model, {"a": (5, 3)})["a"] == (5, 3)


def test_everything_left_dynamic_is_listed(model):
    with pytest.raises(ModelError) as caught:
        fix_input_shapes(model(["batch", 3], None), {})
    assert "a (batchx3), b (unknown rank)" in str(caught.value)
    assert "give input_shapes" in str(caught.value)


def test_unknown_names_are_listed_with_the_known_ones(model):
    with pytest.raises(ConfigError, match=r"inputs of the model \(a, b\), but got 'c', 'd'"):
        fix_input_shapes(model([1]), {"d": (1,), "c": (1,)})


def test_static_dimension_may_be_changed(model):
    onnx_model = model(["batch", 3])
    assert fix_input_shapes(onnx_model, {"a": (4, 5)})["a"] == (4, 5)
    assert _dims(onnx_model)[0] == [4, 5]


@pytest.mark.parametrize(("wanted", "got"), [((), "scalar"), ((3,), "3"), ((1, 2, 3), "1x2x3")])
def test_contradiction_of_the_rank(model, wanted, got):
    with pytest.raises(ConfigError, match=rf"model's rank: 'a' is batchx3, but got {got}$"):
        fix_input_shapes(model(["batch", 3]), {"a": wanted})


def test_a_refusal_leaves_the_model_as_it_was(model):
    onnx_model = model(["batch", 3], None)
    before = onnx_model.SerializeToString(deterministic=True)
    with pytest.raises(ModelError):
        fix_input_shapes(onnx_model, {"a": (4, 3)})
    assert onnx_model.SerializeToString(deterministic=True) == before


def test_initializers_listed_as_inputs_are_no_inputs(model):
    onnx_model = model(["batch", 3], (1,), {"b": np.ones(1, np.float32)})
    assert [value.name for value in graph_inputs(onnx_model)] == ["a"]
    assert fix_input_shapes(onnx_model, {"a": (2, 3)}) == {"a": (2, 3)}
    with pytest.raises(ConfigError, match=r"inputs of the model \(a\), but got 'b'"):
        fix_input_shapes(onnx_model, {"a": (2, 3), "b": (1,)})


def test_input_that_is_no_tensor(make_model):
    onnx_model = make_model(
        [helper.make_node("SequenceAt", ["s", "i"], ["y"])],
        {"i": ("int64", [])},
        {"y": ("float32", None)},
    )
    onnx_model.graph.input.append(
        helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    )
    with pytest.raises(ModelError, match=r"must be tensors, but 's' is a sequence_type"):
        fix_input_shapes(onnx_model, {})


def test_shapes_written_for_the_dynamic_model_are_forgotten(model):
    onnx_model = model(["batch", 3])
    onnx_model.graph.value_info.append(
        helper.make_tensor_value_info("stale", onnx.TensorProto.FLOAT, ["batch"])
    )
    fix_input_shapes(onnx_model, {"a": (2, 3)})
    assert not onnx_model.graph.value_info
    assert declared_dims(onnx_model.graph.output[0]) is None
