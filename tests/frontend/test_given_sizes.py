"""Sets of sizes in ``input_shapes``."""

from __future__ import annotations

import math

import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tvmopt.config import ConvertConfig
from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError
from tvmopt.frontend.given_sets import escaped, format_extent
from tvmopt.frontend.given_shapes import (
    GivenShapes,
    format_given_shapes,
    parse_given_shapes,
    parse_input_shapes,
    shapes_for,
)
from tvmopt.frontend.given_sizes import GivenSize, parse_given_sizes
from tvmopt.tracking.pipeline.request import make_request


@pytest.mark.parametrize(
    ("text", "dimensions", "values"),
    [
        ("", (), [()]),
        ("image:1x3,batch=2", (), [()]),
        ("image:{1}x3,batch={2:2:5},length={3,3}", (), [()]),
        ("image:{1,4,16}x3", ("image[0]",), [(16,), (4,), (1,)]),
        ("ids:1x{16:64:16},mask:=ids", ("ids[1]",), [(64,), (48,), (32,), (16,)]),
        ("ids:1x{16:63:16}", ("ids[1]",), [(48,), (32,), (16,)]),
        ("batch=1,4,16", ("batch",), [(16,), (4,), (1,)]),
        ("batch=16, 1 ,4,4,", ("batch",), [(16,), (4,), (1,)]),
        ("batch={1, 2:6:2 ,4}", ("batch",), [(6,), (4,), (2,), (1,)]),
        ("batch=1;2:6:2;length=3", ("batch",), [(6,), (4,), (2,), (1,)]),
        ("batch=1,2,length=16", ("batch",), [(2,), (1,)]),
        ("batch=1,2,length=1,2", ("batch", "length"), [(2, 2), (2, 1), (1, 2), (1, 1)]),
        ("batch={1,2},length={3,4}", ("batch", "length"), [(2, 4), (2, 3), (1, 4), (1, 3)]),
        ("a=2,6;b=1,3", ("a", "b"), [(6, 3), (6, 1), (2, 3), (2, 1)]),
        ("a=1,2;x:{1,3}", ("x[0]", "a"), [(3, 2), (3, 1), (1, 2), (1, 1)]),
    ],
)
def test_sets_give_all_combinations(text, dimensions, values) -> None:
    found = parse_given_sizes(text)
    assert found.dimensions == dimensions
    assert [size.values for size in found.sizes] == values


def test_each_size_has_a_text_without_sets() -> None:
    assert parse_given_sizes("ids:1x{16,32},mask:=ids;batch=1").sizes == (
        GivenSize((32,), "ids:1x32,batch=1,mask:=ids"),
        GivenSize((16,), "ids:1x16,batch=1,mask:=ids"),
    )


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("batch=4,1:16", {"1": (16,)}),
        ("batch=4,16:", {"16": ()}),
        (r"batch=4,1\:2:16", {"1:2": (16,)}),
        (r"batch=4,a\=1:16", {"a=1": (16,)}),
        ("batch=4,a=1:2x3", {"a=1": (2, 3)}),
    ],
)
def test_an_input_is_not_taken_for_a_range(text, shapes) -> None:
    assert parse_given_shapes(text) == GivenShapes(shapes, {"batch": 4}, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image:1,4x3", "but got '4x3'"),
        ("image:1x3,4", "a set such as {1,4,16} or {16:128:16} (first:last:step)"),
        ("batch={1,4},16", "but got '16'"),
        ("mask:=a=1,4", "but got '4'"),
        ("batch={1,4", "but got 'batch={1'"),
        ("batch=1,4}", "but got '4}'"),
        ("a{b:1x2", "but got 'a{b:1x2'"),
        ("batch={}", "positive integers and ranges first:last:step with first <= last"),
        ("batch={1,}", "but got '' in 'batch={1,}'"),
        ("batch={1,two}", "but got 'two' in 'batch={1,two}'"),
        ("batch={0,4}", "but got '0' in"),
        ("batch=4,0", "but got '0' in 'batch=4,0'"),
        ("batch=16:128", "but got '16:128' in"),
        ("batch=128:16:16", "but got '128:16:16' in"),
        ("batch=16:128:0", "but got '16:128:0' in"),
        ("ids:1x{0:16:1}", "but got '0:16:1' in"),
        ("batch={1,9999999999}", "dimensions of at most 9 digits"),
        ("batch=1:9999999999:1", "dimensions of at most 9 digits"),
        ("batch=1:129:1", "at most 128 sizes, all sets combined, but got a larger set in"),
        ("batch=1:100:1,101:200:1", "give fewer values or larger steps"),
        ("a=1:12:1;b=1:12:1", "but got 12x12; give fewer"),
        ("batch=1,4,batch=2", "name each dimension once, but got 'batch' twice"),
        ("mask:=ids,mask:{2,3}x16", "name each input once, but got 'mask' twice"),
    ],
)
def test_what_is_wrong_is_named(text, message) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_given_sizes(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_128_sizes_are_accepted() -> None:
    assert len(parse_given_sizes("a=1:128:1").sizes) == 128
    assert len(parse_given_sizes("a=1:16:1;b={1:8:1}").sizes) == 128


@pytest.mark.parametrize("parse", [parse_given_shapes, parse_input_shapes])
def test_one_size_is_needed_where_sets_do_not_fit(parse) -> None:
    with pytest.raises(ConfigError, match=r"give one size here, but got sets: 'x:\{1,2\}x3'"):
        parse("x:{1,2}x3")
    assert parse_given_shapes("x:{2}x3").shapes == {"x": (2, 3)}


NAMES = st.text(st.sampled_from("ab 1,;:={}\\\n\t[]x\u00e9"), min_size=1, max_size=8)
SETS = st.frozensets(st.integers(1, 10**6), min_size=1, max_size=3)


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(NAMES, st.lists(SETS, max_size=2), max_size=2),
    st.dictionaries(NAMES, SETS, max_size=2),
    st.sampled_from(",;"),
)
def test_sizes_are_the_product_of_the_sets(shapes, sizes, separator) -> None:
    copies = {f"{name} ": name for name in shapes if f"{name} " not in shapes}
    entries = [
        *(f"{escaped(n)}:{'x'.join(map(format_extent, sets))}" for n, sets in shapes.items()),
        *(f"{escaped(n)}={format_extent(values)}" for n, values in sizes.items()),
        *(f"{escaped(n)}:={escaped(other)}" for n, other in copies.items()),
    ]
    sets = [*(values for axes in shapes.values() for values in axes), *sizes.values()]
    sets = [values for values in sets if len(values) > 1]
    assume(math.prod(map(len, sets)) <= 128)
    found = parse_given_sizes(separator.join(entries))
    assert len(found.dimensions) == len(sets)
    assert len(set(found.sizes)) == len(found.sizes) == math.prod(map(len, sets))
    order = [(math.prod(size.values), size.values) for size in found.sizes]
    assert order == sorted(order, reverse=True)
    assert found.sizes[0].values == tuple(map(max, sets))
    for size in found.sizes:
        _check(size, shapes, sizes, copies)


def _check(size, shapes, sizes, copies) -> None:
    """Each extent has one of its values; a varying extent has the value of the size."""
    parsed = parse_given_shapes(size.text)
    assert list(parsed.shapes) == list(shapes)
    assert list(parsed.sizes) == list(sizes)
    assert parsed.copies == copies
    sets = [*(values for axes in shapes.values() for values in axes), *sizes.values()]
    got = [*(value for shape in parsed.shapes.values() for value in shape), *parsed.sizes.values()]
    assert all(value in values for value, values in zip(got, sets, strict=True))
    pairs = zip(got, sets, strict=True)
    assert size.values == tuple(value for value, values in pairs if len(values) > 1)
    assert format_given_shapes(parsed) == size.text


@pytest.fixture
def model(make_model):
    """Return a model of two inputs that share dimensions."""
    node = onnx.helper.make_node("Sum", ["ids", "mask"], ["y"])
    dims = ("float32", ["batch", "length"])
    return make_model([node], {"ids": dims, "mask": dims}, {"y": dims}, {})


@pytest.mark.parametrize(
    "text", ["batch=1,2;length=8:16:8", "ids:{1,2}x{8,16},mask:=ids", "batch={1,2},length=16"]
)
def test_sets_give_a_model_its_largest_size(model, text) -> None:
    assert shapes_for(model, text) == {"ids": (2, 16), "mask": (2, 16)}
    assert shapes_for(model, parse_given_sizes(text).sizes[0].text) == shapes_for(model, text)


def test_requests_and_configurations_accept_sets(model, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model, str(path))
    text = "batch=1,2;length={8,16}"
    assert make_request(path, input_shapes=text).asked.model.input_shapes == text
    target = resolve_target("host", 1).to_dict()
    assert ConvertConfig(text, target).input_shapes == text
