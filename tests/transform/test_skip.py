"""Tests of ``skip_layers``: which layers its patterns select."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmopt.errors import ConfigError
from tvmopt.transform import parse_skip_layers, resolve_skip_layers

LAYERS = [
    SimpleNamespace(index=index, name=name, op=op)
    for index, (name, op) in enumerate(
        [("stem", "Conv"), ("block1.conv", "Conv"), ("block2.conv", "Conv"), ("fc1", "Gemm"),
         ("fc2", "MatMul"), ("7", "Conv")]
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        (None, ()),
        ("", ()),
        (" , ", ()),
        ("0,fc*", (0, "fc*")),
        (" 3 , 3,a ,+1,-2", (3, "a", 1, -2)),
        ([0, "fc*"], (0, "fc*")),
        ((np.int64(4), "5"), (4, 5)),
    ],
)
def test_parse(given, parsed):
    assert parse_skip_layers(given) == parsed


@pytest.mark.parametrize("wrong", [[1.5], [None], [True]])
def test_what_is_no_pattern(wrong):
    with pytest.raises(ConfigError, match="skip_layers must hold indices, name globs or operator"):
        parse_skip_layers(wrong)


@pytest.mark.parametrize(
    ("skip", "indices"),
    [
        ("0", [0]),
        ("fc*,0", [0, 3, 4]),
        ("block?.conv", [1, 2]),
        ("Conv", [0, 1, 2, 5]),
        (["MatMul", "Gemm"], [3, 4]),
        ("*", [0, 1, 2, 3, 4, 5]),
        (None, []),
    ],
)
def test_resolve(skip, indices):
    assert list(resolve_skip_layers(LAYERS, skip)) == indices


def test_first_pattern_is_the_reason():
    assert resolve_skip_layers(LAYERS, "fc1,fc*") == {
        3: "skip_layers: fc1",
        4: "skip_layers: fc*",
    }


@pytest.mark.parametrize("op", ["relax.nn.conv2d", "nn.conv2d", "conv2d"])
def test_relax_operators(op):
    layers = [SimpleNamespace(index=0, name="lv", op="nn.conv2d")]
    assert list(resolve_skip_layers(layers, [op])) == [0]


@pytest.mark.parametrize("pattern", ["6", "-1", "conv*", "conv", "Convolution"])
def test_pattern_that_matches_nothing(pattern):
    with pytest.raises(
        ConfigError,
        match="skip_layers must match layers, but .* matches none of "
        r"the layers 0 to 5 \(names stem, block1.conv, ..., 7; operators Conv",
    ):
        resolve_skip_layers(LAYERS, f"0,{pattern}")


def test_model_without_layers():
    with pytest.raises(ConfigError, match="matches none of a model without layers"):
        resolve_skip_layers([], "0")
    assert resolve_skip_layers([], "") == {}


@given(st.lists(st.integers(0, 5) | st.sampled_from(["fc*", "Conv", "s?em"]), max_size=5))
def test_text_and_list_mean_the_same(items):
    text = ",".join(map(str, items))
    found = resolve_skip_layers(LAYERS, items)
    assert found == resolve_skip_layers(LAYERS, text)
    assert list(found) == sorted(found)
    assert set(found) >= {item for item in items if isinstance(item, int)}
