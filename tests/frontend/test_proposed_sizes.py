"""``sequence=auto``: sizes from the samples in the user's data."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import tvmopt
from tvmopt.errors import ConfigError
from tvmopt.frontend.proposed_sizes import propose_sizes, proposes, with_proposed_sizes


def _model() -> onnx.ModelProto:
    """Return the mean of embedded words where the mask is one: (rows, length) -> (rows, 4)."""
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["rows", "length"])
        for name in ("ids", "mask")
    ]
    table = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["words"]),
        helper.make_node("Cast", ["mask"], ["ones"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["ones", "two"], ["used"]),
        helper.make_node("Mul", ["words", "used"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "one"], ["y"], keepdims=0),
    ]
    constants = {"table": table, "one": np.array([1]), "two": np.array([2])}
    graph = helper.make_graph(
        nodes, "g", inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _samples(lengths: list[int], longest: int) -> dict[str, np.ndarray]:
    """Return samples whose padding has the word 1; only the mask tells it."""
    mask = (np.arange(longest) < np.array(lengths)[:, None]).astype(np.int64)
    return {"ids": np.where(mask, 3, 1), "mask": mask}


@settings(max_examples=60, deadline=None)
@given(data=st.data(), longest=st.integers(1, 60))
def test_fewest_sizes_with_the_least_padding(data, longest) -> None:
    lengths = data.draw(st.lists(st.integers(1, longest), min_size=1, max_size=40))
    sizes = propose_sizes(np.array(lengths), longest)
    assert sizes == tuple(sorted(set(sizes)))
    assert sizes[-1] == longest
    assert len(sizes) <= 8

    def padded(chosen: tuple[int, ...]) -> int:
        return sum(min(size for size in chosen if size >= length) for length in lengths)

    assert len(sizes) == 8 or padded(sizes) <= 1.05 * sum(lengths)
    others = sorted(set(lengths) - {longest})
    for count in (len(sizes) - 1, len(sizes) - 2):
        if 0 <= count <= 2:
            best = (
                min(padded((*some, longest)) for some in itertools.combinations(others, count))
                if count <= len(others)
                else padded(tuple(sizes))
            )
            if count == len(sizes) - 1:
                assert padded(sizes) == best  # the best of as many
            else:
                assert best > 1.05 * sum(lengths)  # fewer do not suffice


def test_long_samples_have_sizes_that_vectors_divide() -> None:
    lengths = np.random.default_rng(0).integers(1, 16000, 500)
    sizes = propose_sizes(lengths, 16000)
    assert sizes[-1] == 16000
    assert all(size % 8 == 0 for size in sizes)
    assert 4 <= len(sizes) <= 8


def test_mask_says_how_long_samples_are() -> None:
    arrays = _samples([4] * 30 + [16] * 30 + [30], 32)
    assert with_proposed_sizes("rows=1,length=auto", _model(), arrays) == "rows=1,length={4,16,32}"


def test_without_a_mask_zeros_at_the_end_do() -> None:
    ids = _samples([4] * 30 + [16] * 30, 16)["mask"] * 5
    ids[:, 1] = 0  # a zero inside
    arrays = {"ids": ids, "mask": np.full_like(ids, 7)}
    arrays["mask"][ids == 0] = 0
    assert with_proposed_sizes(" length=auto ", _model(), arrays) == "length={4,16}"


def test_whole_inputs_have_a_further_axis() -> None:
    one = _samples([4, 4, 16, 16], 16)
    arrays = {name: array[:, None] for name, array in one.items()}
    assert with_proposed_sizes("length=auto,rows=1", _model(), arrays) == "length={4,16},rows=1"
    pairs = {name: array.reshape(2, 2, 16) for name, array in one.items()}
    assert with_proposed_sizes("rows=auto;length=16", _model(), pairs) == "rows={2},length=16"


def test_only_an_entry_asks() -> None:
    assert proposes("rows=1;length=auto")
    assert not proposes("auto:1x16,length=16")
    assert not proposes("")


@pytest.mark.parametrize(
    ("text", "arrays", "reason"),
    [
        ("length=auto", None, "there is no data; give data, or sizes such as 16,64,128"),
        ("width=auto", _samples([1], 2), "no input of the model has a dimension of that name"),
        ("rows=auto", _samples([1], 2), "not how many a call has; give sizes such as 1,4,16"),
        ("length=auto", {"ids": np.ones((2, 3))}, "data holds no array 'mask', whose axis it is"),
        ("length=auto", {"ids": np.ones((2, 3)), "mask": np.ones((2, 4))}, r"\(2, 3\), \(2, 4\)"),
        ("length=auto", {"ids": np.ones(3), "mask": np.ones(3)}, "has 1 axes in data; want 2"),
    ],
)  # fmt: skip
def test_what_data_does_not_tell_is_refused(text, arrays, reason) -> None:
    name = text.split("=")[0]
    match = rf"must propose '{name}' from data for {name}=auto, but .*{reason}"
    with pytest.raises(ConfigError, match=match):
        with_proposed_sizes(text, _model(), arrays)


def test_compiled_model_has_the_sizes(tmp_path) -> None:
    arrays = _samples([3, 3, 3, 8, 8, 8], 8)
    compiled = tvmopt.compile(_model(), {"rows": 1, "length": "auto"}, threads=1, data=arrays)
    assert [size.inputs[0] for size in compiled.metadata.sizes] == [(1, 8), (1, 3)]
    short = {name: array[:1, :3] for name, array in arrays.items()}
    [got] = compiled(short)
    table = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    np.testing.assert_allclose(got, 3 * table[3][None], rtol=1e-5)
