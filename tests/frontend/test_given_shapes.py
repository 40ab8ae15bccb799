"""Input shapes given by dimension names, or by another input."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmopt
from tvmopt.errors import ConfigError, ModelError
from tvmopt.frontend.given_shapes import (
    GivenShapes,
    format_given_shapes,
    parse_given_shapes,
    parse_input_shapes,
    shapes_for,
)
from tvmopt.frontend.shapes import fix_input_shapes
from tvmopt.tracking.pipeline.request import make_request


@pytest.fixture
def model(make_model):
    """Return a model of three inputs that share dimensions, and one of fixed shape."""
    node = onnx.helper.make_node("Sum", ["ids", "mask", "kinds", "one"], ["y"])
    inputs = {
        "ids": ("float32", ["batch", "sequence"]),
        "mask": ("float32", ["batch", "sequence"]),
        "kinds": ("float32", ["batch", 1]),
        "one": ("float32", [1, 1]),
    }
    return make_model([node], inputs, {"y": ("float32", ["batch", "sequence"])}, {})


ALL = {"ids": (2, 16), "mask": (2, 16), "kinds": (2, 1), "one": (1, 1)}


@pytest.mark.parametrize(
    "text",
    [
        "batch=2,sequence=16",
        " sequence=16 , batch=2,",
        "batch=2,ids:2x16,mask:2x16",
        "batch=2,ids:2x16,mask:=ids",
        "ids:2x16,mask:=ids,kinds:2x1",
        "batch=2,sequence=16,mask:=ids",
        "batch=2,sequence=16,one:1x1",
    ],
)
def test_each_form_gives_all_shapes(model, text) -> None:
    assert fix_input_shapes(model, shapes_for(model, text)) == ALL


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch=2,lenght=3", "dimensions of the model (batch, sequence), but got 'lenght'"),
        ("batch=2,batch=3", "name each dimension once, but got 'batch' twice"),
        ("ids:2x16,batch=3", "'ids' has 2 where the model has batch, and batch=3"),
        ("masc:=ids,ids:2x16", "inputs of the model (ids, kinds, mask, one), but got 'masc'"),
        ("mask:=isd", "inputs of the model (ids, kinds, mask, one), but got 'isd'"),
        ("mask:=ids", "must give 'ids' a shape, since 'mask' has the same"),
        ("mask:=ids,mask:2x16", "name each input once, but got 'mask' twice"),
        ("batch=two", "dimension=A"),
        ("batch=-1", "dimension=A"),
        ("=3", "dimension=A"),
        ("mask:=", "name:=other"),
        ("batch=9999999999", "dimensions of at most 9 digits"),
    ],
)
def test_what_is_wrong_is_named(model, text, message) -> None:
    with pytest.raises(ConfigError) as caught:
        shapes_for(model, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refusal_of_dynamic_inputs_names_the_dimensions(model) -> None:
    with pytest.raises(ModelError) as caught:
        fix_input_shapes(model, shapes_for(model, "batch=2"))
    assert "ids (batchxsequence), mask (batchxsequence)" in str(caught.value)
    assert "for example input_shapes=batch=1,sequence=16, or whole shapes" in str(caught.value)


def test_the_example_names_the_dimensions_beside_a_scalar(make_model) -> None:
    node = onnx.helper.make_node("Mul", ["x", "rate"], ["y"])
    inputs = {"x": ("float32", ["batch", 3]), "rate": ("float32", [])}
    model = make_model([node], inputs, {"y": ("float32", ["batch", 3])}, {})
    with pytest.raises(ModelError, match="for example input_shapes=batch=1, or whole shapes"):
        fix_input_shapes(model, {})
    assert shapes_for(model, "batch=2") == {"x": (2, 3), "rate": ()}


def test_an_input_copies_the_shape_of_a_static_one(make_model) -> None:
    node = onnx.helper.make_node("Sum", ["x", "y"], ["z"])
    inputs = {"x": ("float32", [2, 3]), "y": ("float32", ["n", 3])}
    model = make_model([node], inputs, {"z": ("float32", ["n", 3])}, {})
    assert shapes_for(model, "y:=x")["y"] == (2, 3)


def test_benchmarks_take_shapes_of_inputs_only() -> None:
    with pytest.raises(ConfigError, match="must be name:AxBxC here"):
        parse_input_shapes("batch=1")


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters=",", exclude_categories=("Zs", "Cc")),
    min_size=1,
    max_size=12,
).filter(lambda name: name == name.strip())


@settings(deadline=None, max_examples=200)
@given(
    st.dictionaries(NAMES, st.lists(st.integers(0, 10**6), max_size=4).map(tuple), max_size=3),
    st.dictionaries(NAMES, st.integers(0, 10**8), max_size=3),
)
def test_parse_reverses_format(shapes, sizes) -> None:
    copies = {f"copy of {name}": name for name in shapes}
    made = GivenShapes(shapes, sizes, copies)
    assert parse_given_shapes(format_given_shapes(made)) == made


@pytest.mark.parametrize("shapes", ["batch=2,sequence=16", {"batch": 2, "sequence": 16}])
def test_a_model_compiles_by_its_dimensions(model, shapes) -> None:
    compiled = tvmopt.compile(model, shapes, threads=1)
    assert {spec.name: spec.shape for spec in compiled.metadata.inputs} == ALL


def test_stages_get_the_shapes_of_all_inputs(model, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, str(path))
    request = make_request(path, input_shapes="batch=2,sequence=16")
    assert request.input_shapes == "ids:2x16,mask:2x16,kinds:2x1,one:1x1"
